#include "remote/client/memory/async_copy.h"

#include "remote/client/connection/call.h"
#include "remote/client/connection/listener.h"

#define OPEN_MAX (256u << 20) /* bytes under way */

struct fetch {
    uint32_t seq;
    uint8_t *to;
    size_t bytes;
    struct fetch *next;
};

static struct {
    pthread_mutex_t lock;
    struct fetch *first;
    size_t open;
} fetches = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void copy_end(struct fetch *f)
{
    pthread_mutex_lock(&fetches.lock);
    struct fetch **at = &fetches.first;
    while (*at && *at != f)
        at = &(*at)->next;
    if (*at) *at = f->next;
    __atomic_fetch_sub(&fetches.open, f->bytes, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&fetches.lock);
    free(f);
    cb_listener_expect(-1);
}

static struct fetch *copy_find(uint32_t seq)
{
    pthread_mutex_lock(&fetches.lock);
    struct fetch *f = fetches.first;
    while (f && f->seq != seq)
        f = f->next;
    pthread_mutex_unlock(&fetches.lock);
    return f;
}

static bool data_notice_take(const struct cb_frame *frame)
{
    uint64_t word[2]; /* result, offset */
    struct fetch *f = copy_find(frame->seq);
    if (!f || frame->bytes < sizeof word || !cb_notice_receive(word, sizeof word)) return false;
    size_t rest = frame->bytes - sizeof word;
    if (word[1] > f->bytes || rest > f->bytes - word[1]) return false;
    if (!cb_notice_receive(f->to + word[1], rest)) return false;
    if (!(frame->flags & (CB_FRAME_PART | CB_FRAME_KEPT))) copy_end(f);
    return true;
}

bool cb_async_copy_fits(size_t bytes)
{
    return bytes <= CB_ASYNC_COPY_MAX &&
           __atomic_load_n(&fetches.open, __ATOMIC_RELAXED) <= OPEN_MAX - CB_ASYNC_COPY_MAX;
}

bool cb_async_copies_open(void)
{
    return __atomic_load_n(&fetches.open, __ATOMIC_RELAXED) != 0;
}

bool cb_async_copy_is_into(uint64_t address, size_t bytes)
{
    if (!cb_async_copies_open()) return false;
    pthread_mutex_lock(&fetches.lock);
    const struct fetch *f = fetches.first;
    while (f && ((uint64_t)f->to + f->bytes <= address || address + bytes <= (uint64_t)f->to))
        f = f->next;
    pthread_mutex_unlock(&fetches.lock);
    return f != NULL;
}

static void copies_after_fork(void)
{
    pthread_mutex_init(&fetches.lock, NULL);
}

static void copies_prepare(void)
{
    cb_notice_register(CB_DATA, data_notice_take);
    pthread_atfork(NULL, NULL, copies_after_fork);
}

/* Data with the number of the call is put at `to`. NULL: no memory. */
static struct fetch *copy_expect(const struct cb_call *call, void *to, size_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, copies_prepare);
    struct fetch *f = malloc(sizeof *f);
    if (!f) return NULL;
    *f = (struct fetch){call->answer.seq, to, bytes, NULL};
    pthread_mutex_lock(&fetches.lock);
    f->next = fetches.first;
    fetches.first = f;
    __atomic_fetch_add(&fetches.open, bytes, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&fetches.lock);
    cb_listener_expect(1);
    return f;
}

CUresult cb_async_copy(void *to, CUdeviceptr from, size_t bytes, CUstream stream, bool known)
{
    struct cb_call call;
    CB_OK(cb_call_begin(&call, CB_OP_FETCH, CB_IN_CONTEXT));
    cb_put_word(&call, from);
    cb_put_word(&call, bytes);
    cb_put_handle(&call, CB_KIND_STREAM, (uintptr_t)stream);
    if (!known) return cb_async_copy_ask(&call, to, bytes);
    struct fetch *f = copy_expect(&call, to, bytes);
    if (!f) call.failed = CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = cb_call_send(&call);
    if (f && result != CUDA_SUCCESS) copy_end(f);
    return result;
}

CUresult cb_async_copy_ask(struct cb_call *call, void *to, size_t bytes)
{
    struct fetch *f = call->failed == CUDA_SUCCESS ? copy_expect(call, to, bytes) : NULL;
    if (!f && call->failed == CUDA_SUCCESS) call->failed = CUDA_ERROR_OUT_OF_MEMORY;
    return cb_call_ask(call); /* a refused copy is ended by a notice like any other */
}
