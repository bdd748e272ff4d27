#include "remote/client/memory/mirrored_memory.h"

#include "remote/client/connection/call.h"
#include "remote/wire/arena.h"
#include "remote/wire/twin.h"

static struct entry {
    struct cb_twin twin;
    bool managed, sent;
} *entries;
static size_t count, room;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool used;            /* a command may have written since the last fetch */
static __thread bool inside; /* this thread is sending or fetching */

static struct cb_twin *twin_of(uint64_t address)
{
    for (size_t i = 0; i < count; i++) {
        struct cb_twin *t = &entries[i].twin;
        if (address - t->address < t->bytes) return t;
    }
    return NULL;
}

static bool send_changes(struct cb_twin *t)
{
    static uint8_t changes[CB_CHANGES_MAX] __attribute__((aligned(8)));
    struct cb_call call;
    for (uint64_t at = 0; at < t->bytes;) {
        size_t bytes = cb_twin_changes(t, &at, changes, sizeof changes);
        if (!bytes) continue;
        if (cb_call_begin_as(&call, CB_OP_TWIN_WRITE, 0) != CUDA_SUCCESS) return false;
        cb_put_word(&call, bytes);
        if (cb_call_send_with(&call, changes, bytes) != CUDA_SUCCESS) return false;
    }
    return true;
}

/* What waits, or asks, does not use memory. */
static bool is_wait(enum cb_op op)
{
    switch (op) {
    case CB_OP_cuCtxSynchronize:
    case CB_OP_cuStreamSynchronize:
    case CB_OP_cuEventSynchronize:
        return true;
    default:
        return false;
    }
}

static void before_command(enum cb_op op)
{
    if (inside || is_wait(op) || op == CB_OP_EVENT_QUERY || op == CB_OP_STREAM_QUERY ||
        op == CB_OP_cuMemGetInfo_v2 || op == CB_OP_MANAGED)
        return;
    inside = true;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++) {
        struct entry *e = &entries[i];
        if (e->managed && e->sent) continue;
        if (send_changes(&e->twin)) e->sent = true;
    }
    pthread_mutex_unlock(&lock);
    inside = false;
    __atomic_store_n(&used, true, __ATOMIC_RELEASE);
}

/* One answer of changes; false when that was the last. */
static bool fetch_some(uint64_t *from)
{
    struct cb_call call;
    if (cb_call_begin_as(&call, CB_OP_TWIN_READ, 0) != CUDA_SUCCESS) return false;
    cb_put_word(&call, *from);
    bool ok = cb_call_question(&call) == CUDA_SUCCESS;
    if (ok) {
        *from = cb_take_word(&call);
        size_t bytes = cb_take_word(&call);
        const uint8_t *data = cb_take_block(&call, bytes);
        ok = data && cb_twin_apply(data, bytes, twin_of);
    }
    cb_call_end(&call);
    return ok && *from;
}

static void fetch(void)
{
    inside = true;
    pthread_mutex_lock(&lock);
    if (count && __atomic_exchange_n(&used, false, __ATOMIC_ACQ_REL)) {
        for (size_t i = 0; i < count; i++)
            entries[i].sent = false;
        for (uint64_t from = 0; fetch_some(&from);)
            continue;
    }
    pthread_mutex_unlock(&lock);
    inside = false;
}

static void after_wait(enum cb_op op)
{
    if (!inside && is_wait(op)) fetch();
}

bool cb_twin_add(uint64_t address, uint64_t bytes, bool managed)
{
    pthread_mutex_lock(&lock);
    if (count == room) {
        struct entry *more = realloc(entries, (room + 64) * sizeof *more);
        if (more) {
            entries = more;
            room += 64;
        }
    }
    struct cb_twin t;
    bool ok = count < room && count < CB_TWINS_MAX && cb_twin_make(&t, address, bytes, true);
    if (ok) {
        entries[count++] = (struct entry){t, managed, false};
        cb_before_command = before_command;
        cb_after_wait = after_wait;
    }
    pthread_mutex_unlock(&lock);
    return ok;
}

void cb_twin_drop(uint64_t address)
{
    struct cb_call call;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++) {
        if (entries[i].twin.address != address) continue;
        cb_twin_end(&entries[i].twin);
        entries[i] = entries[--count];
        break;
    }
    if (!count) cb_before_command = cb_after_wait = NULL;
    pthread_mutex_unlock(&lock);
    if (cb_call_begin(&call, CB_OP_TWIN_DROP, CB_ANYWHERE) != CUDA_SUCCESS) return;
    cb_put_word(&call, address);
    cb_call_send(&call);
}
