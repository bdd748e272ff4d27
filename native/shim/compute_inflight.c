/* The table of streams, and the counters of work in flight. */
#define _GNU_SOURCE
#include "shim/compute_inflight.h"

#include "shim/compute_limiter.h"
#include "shim/compute_words.h"

#include <pthread.h>
#include <string.h>

#define STREAM_PROBES 16u
#define CB_STREAMS    512u

/* the last entry serves all streams that found no free one */
static struct cb_stream streams[CB_STREAMS + 1];

/* Open addressing, fixed size; entries are never freed. */
struct cb_stream *cb_stream_find(CUstream stream, bool per_thread)
{
    uint64_t key = (uint64_t)(uintptr_t)stream;
    if (per_thread && (stream == NULL || stream == CU_STREAM_PER_THREAD)) key = (uint64_t)pthread_self();
    key = cb_key_mix(key, 0x73747265616Dull) | 1;
    for (uint32_t i = 0; i < STREAM_PROBES; i++) {
        struct cb_stream *entry = &streams[((key >> 20) + i) % CB_STREAMS];
        if (cb_key_take(&entry->key, key)) return entry;
    }
    return &streams[CB_STREAMS];
}

void cb_stream_book(struct cb_stream *entry, uint64_t cost_ns, uint64_t launches, uint64_t begin_ns)
{
    uint32_t count = LOAD(&entry->unfenced_count);
    if (count == 0) STORE(&entry->first_ns, begin_ns);
    ADD(&entry->inflight_ns, cost_ns);
    ADD(&entry->unfenced_ns, cost_ns);
    STORE(&entry->unfenced_count, count + (uint32_t)launches); /* a lost count does no harm */
    STORE(&entry->launch_count, LOAD(&entry->launch_count) + launches);
}

bool cb_is_beside(const struct cb_device_view *view, const struct cb_stream *entry, uint64_t booked_ns)
{
    return LOAD(view->own_inflight_ns) > LOAD(&entry->inflight_ns) + booked_ns;
}

static uint64_t counter_sub_clamped(uint64_t *counter, uint64_t amount)
{
    uint64_t old = LOAD(counter);
    uint64_t left;
    do {
        left = old > amount ? old - amount : 0;
    } while (!__atomic_compare_exchange_n(counter, &old, left, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old - left;
}

void cb_inflight_drop(uint32_t device, uint64_t amount_ns)
{
    struct cb_device_view view = cb_compute_view(device);
    amount_ns = counter_sub_clamped(view.own_inflight_ns, amount_ns);
    counter_sub_clamped(&view.usage->inflight_ns, amount_ns);
    if (LOAD(view.own_inflight_ns) == 0) STORE(view.own_until_ns, 0);
}

void cb_stream_drop(struct cb_stream *entry, uint32_t device, uint64_t amount_ns)
{
    counter_sub_clamped(&entry->inflight_ns, amount_ns);
    cb_inflight_drop(device, amount_ns);
}

void cb_stream_flush(struct cb_stream *entry, uint64_t before_ns)
{
    if (LOAD(&entry->key) == 0 || LOAD(&entry->last_ns) >= before_ns) return;
    uint64_t amount = __atomic_exchange_n(&entry->unfenced_ns, 0, __ATOMIC_RELAXED);
    STORE(&entry->unfenced_count, 0);
    if (amount == 0) return;
    ADD(&cb_compute_view(entry->device).usage->charged_ns, amount);
    cb_stream_drop(entry, entry->device, amount);
}

void cb_streams_flush(uint64_t before_ns)
{
    for (uint32_t i = 0; i <= CB_STREAMS; i++)
        cb_stream_flush(&streams[i], before_ns);
}

void cb_streams_reset(void)
{
    memset(streams, 0, sizeof(streams));
}
