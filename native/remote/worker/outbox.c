#include "remote/worker/outbox.h"

#include "remote/worker/channel.h"

#include <pthread.h>

#define OUTBOX_BYTES (64u << 10)

static struct {
    pthread_mutex_t lock;
    uint32_t filled;
    uint8_t bytes[OUTBOX_BYTES];
} out = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool outbox_send(void)
{
    bool ok = !out.filled || cb_channel_send(out.bytes, out.filled);
    __atomic_store_n(&out.filled, 0, __ATOMIC_RELAXED);
    return ok;
}

static bool outbox_append(const void *data, size_t bytes)
{
    if (OUTBOX_BYTES - out.filled < bytes && !outbox_send()) return false;
    if (bytes) memcpy(out.bytes + out.filled, data, bytes);
    __atomic_store_n(&out.filled, out.filled + (uint32_t)bytes, __ATOMIC_RELAXED);
    return true;
}

bool cb_outbox_notice(const struct cb_frame *of, uint16_t op, uint16_t flags, CUresult result,
                      const uint64_t *words, unsigned int count, const void *data, size_t bytes)
{
    struct cb_frame f = {.op = op,
                         .context = of->context,
                         .seq = of->seq,
                         .thread = of->thread,
                         .flags = flags,
                         .bytes = (uint32_t)(8 + 8 * count + bytes)};
    uint64_t word = (uint64_t)result;
    pthread_mutex_lock(&out.lock);
    bool ok =
        outbox_append(&f, sizeof f) && outbox_append(&word, sizeof word) && outbox_append(words, 8 * count);
    if (ok && bytes <= OUTBOX_BYTES / 2) {
        ok = outbox_append(data, bytes);
    } else if (ok) {
        struct iovec parts[2] = {{out.bytes, out.filled}, {(void *)data, bytes}};
        __atomic_store_n(&out.filled, 0, __ATOMIC_RELAXED);
        ok = cb_channel_send_parts(parts, 2);
    }
    pthread_mutex_unlock(&out.lock);
    return ok;
}

bool cb_outbox_put(const struct cb_frame *of, uint16_t op, uint16_t flags, CUresult result, const void *data,
                   size_t bytes)
{
    return cb_outbox_notice(of, op, flags, result, NULL, 0, data, bytes);
}

bool cb_outbox_flush(void)
{
    if (!__atomic_load_n(&out.filled, __ATOMIC_RELAXED)) return true;
    pthread_mutex_lock(&out.lock);
    bool ok = outbox_send();
    pthread_mutex_unlock(&out.lock);
    return ok;
}
