#include "remote/client/memory/mirrored_memory.h"

#include "remote/client/connection/call.h"
#include "remote/wire/arena.h"
#include "remote/wire/mirror.h"

static struct entry {
    struct cb_mirror mirror;
    bool managed, sent;
} *entries;
static size_t mirror_count, mirror_capacity;
static pthread_mutex_t mirrors_lock = PTHREAD_MUTEX_INITIALIZER;
static bool written_since_fetch; /* a command may have written since the last fetch */
static __thread bool inside;     /* this thread is sending or fetching */

static struct cb_mirror *mirror_find(uint64_t address)
{
    for (size_t i = 0; i < mirror_count; i++) {
        struct cb_mirror *t = &entries[i].mirror;
        if (address - t->address < t->bytes) return t;
    }
    return NULL;
}

static bool mirror_send_changes(struct cb_mirror *t)
{
    static uint8_t changes[CB_CHANGES_MAX] __attribute__((aligned(8)));
    struct cb_call call;
    for (uint64_t at = 0; at < t->bytes;) {
        size_t bytes = cb_mirror_changes(t, &at, changes, sizeof changes);
        if (!bytes) continue;
        if (cb_call_begin_as(&call, CB_OP_TWIN_WRITE, 0) != CUDA_SUCCESS) return false;
        cb_put_word(&call, bytes);
        if (cb_call_send_with(&call, changes, bytes) != CUDA_SUCCESS) return false;
    }
    return true;
}

/* Waits and queries do not use memory. */
static bool op_is_wait(enum cb_op op)
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

static void mirror_before_command(enum cb_op op)
{
    if (inside || op_is_wait(op) || op == CB_OP_EVENT_QUERY || op == CB_OP_STREAM_QUERY ||
        op == CB_OP_cuMemGetInfo_v2 || op == CB_OP_MANAGED)
        return;
    inside = true;
    pthread_mutex_lock(&mirrors_lock);
    for (size_t i = 0; i < mirror_count; i++) {
        struct entry *e = &entries[i];
        if (e->managed && e->sent) continue;
        if (mirror_send_changes(&e->mirror)) e->sent = true;
    }
    pthread_mutex_unlock(&mirrors_lock);
    inside = false;
    __atomic_store_n(&written_since_fetch, true, __ATOMIC_RELEASE);
}

/* Apply one answer of changes; return false if that was the last. */
static bool mirror_fetch_part(uint64_t *from)
{
    struct cb_call call;
    if (cb_call_begin_as(&call, CB_OP_TWIN_READ, 0) != CUDA_SUCCESS) return false;
    cb_put_word(&call, *from);
    bool ok = cb_call_question(&call) == CUDA_SUCCESS;
    if (ok) {
        *from = cb_take_word(&call);
        size_t bytes = cb_take_word(&call);
        const uint8_t *data = cb_take_block(&call, bytes);
        ok = data && cb_mirror_apply(data, bytes, mirror_find);
    }
    cb_call_end(&call);
    return ok && *from;
}

static void mirror_fetch(void)
{
    inside = true;
    pthread_mutex_lock(&mirrors_lock);
    if (mirror_count && __atomic_exchange_n(&written_since_fetch, false, __ATOMIC_ACQ_REL)) {
        for (size_t i = 0; i < mirror_count; i++)
            entries[i].sent = false;
        for (uint64_t from = 0; mirror_fetch_part(&from);)
            continue;
    }
    pthread_mutex_unlock(&mirrors_lock);
    inside = false;
}

static void mirror_after_wait(enum cb_op op)
{
    if (!inside && op_is_wait(op)) mirror_fetch();
}

bool cb_mirror_add(uint64_t address, uint64_t bytes, bool managed)
{
    pthread_mutex_lock(&mirrors_lock);
    if (mirror_count == mirror_capacity) {
        struct entry *more = realloc(entries, (mirror_capacity + 64) * sizeof *more);
        if (more) {
            entries = more;
            mirror_capacity += 64;
        }
    }
    struct cb_mirror t;
    bool ok = mirror_count < mirror_capacity && mirror_count < CB_MIRRORS_MAX &&
              cb_mirror_make(&t, address, bytes, true);
    if (ok) {
        entries[mirror_count++] = (struct entry){t, managed, false};
        cb_before_command = mirror_before_command;
        cb_after_wait = mirror_after_wait;
    }
    pthread_mutex_unlock(&mirrors_lock);
    return ok;
}

void cb_mirror_drop(uint64_t address)
{
    struct cb_call call;
    pthread_mutex_lock(&mirrors_lock);
    for (size_t i = 0; i < mirror_count; i++) {
        if (entries[i].mirror.address != address) continue;
        cb_mirror_end(&entries[i].mirror);
        entries[i] = entries[--mirror_count];
        break;
    }
    if (!mirror_count) cb_before_command = cb_after_wait = NULL;
    pthread_mutex_unlock(&mirrors_lock);
    if (cb_call_begin(&call, CB_OP_TWIN_DROP, CB_ANYWHERE) != CUDA_SUCCESS) return;
    cb_put_word(&call, address);
    cb_call_send(&call);
}
