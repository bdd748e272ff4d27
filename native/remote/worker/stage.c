#include "remote/worker/stage.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#define STAGES_MAX  256
#define STAGES_FEW  8        /* more only when the oldest does not get ready: they leave the cache */
#define PATIENCE_NS 1000000u /* for the oldest */

static struct cb_stage stages[STAGES_MAX];
static size_t count, next; /* `next`: probably the oldest */
static struct cb_stage *small;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool is_free(const struct cb_stage *s)
{
    return !s->held && (!s->used || CB_CALL(cuEventQuery)(s->event) !=
                                        CUDA_ERROR_NOT_READY); /* an error: its context is gone */
}

static struct cb_stage *more(void)
{
    struct cb_stage *s = &stages[count];
    struct cb_pinned pages;
    if (count == STAGES_MAX || !cb_pinned_make(&pages, CB_STAGE_BYTES)) return NULL;
    *s = (struct cb_stage){.pages = pages, .data = pages.data};
    count++;
    return s;
}

static struct cb_stage *find(void)
{
    for (size_t i = 0; i < count; i++) {
        if (&stages[i] != small && is_free(&stages[i])) return &stages[i];
    }
    if (count < STAGES_FEW) return more();
    struct cb_stage *oldest = &stages[next++ % count];
    if (oldest == small) oldest = &stages[next++ % count];
    for (uint64_t until = now_ns() + PATIENCE_NS; now_ns() < until; sched_yield()) {
        if (is_free(oldest)) return oldest;
    }
    struct cb_stage *s = more();
    if (s) return s;
    CB_CALL(cuEventSynchronize)(oldest->event);
    return oldest->held ? NULL : oldest;
}

static struct cb_stage *take(void)
{
    CUcontext context = NULL;
    struct cb_stage *s = find();
    if (!s || CB_CALL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS) return NULL;
    cb_pinned_renew(&s->pages);
    s->used = false;
    s->filled = 0;
    if (s->event && s->context == context) return s;
    if (s->event) CB_CALL(cuEventDestroy_v2)(s->event);
    s->event = NULL;
    s->context = context;
    return CB_CALL(cuEventCreate)(&s->event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS ? s : NULL;
}

struct cb_stage *cb_stage_take(void)
{
    pthread_mutex_lock(&lock);
    struct cb_stage *s = take();
    if (s) s->held = true;
    pthread_mutex_unlock(&lock);
    return s;
}

struct cb_stage *cb_stage_room(CUstream stream, size_t bytes)
{
    CUcontext context = NULL;
    if (bytes > CB_STAGE_BYTES / 4) return cb_stage_take();
    CB_CALL(cuCtxGetCurrent)(&context);
    pthread_mutex_lock(&lock);
    struct cb_stage *s = small;
    if (!s || s->stream != stream || s->context != context || CB_STAGE_BYTES - s->filled < bytes) {
        small = NULL;
        s = small = take();
        if (s) s->stream = stream;
    }
    if (s) s->held = true;
    pthread_mutex_unlock(&lock);
    return s;
}

CUresult cb_stage_used(struct cb_stage *s, CUstream stream)
{
    CUresult result = CB_CALL(cuEventRecord)(s->event, stream);
    if (result != CUDA_SUCCESS) CB_CALL(cuStreamSynchronize)(stream); /* nobody could tell when it is over */
    s->used = result == CUDA_SUCCESS;
    return result;
}

CUresult cb_stage_wait(struct cb_stage *s)
{
    return CB_CALL(cuEventSynchronize)(s->event);
}

void cb_stage_give(struct cb_stage *s)
{
    pthread_mutex_lock(&lock);
    s->held = false;
    pthread_mutex_unlock(&lock);
}
