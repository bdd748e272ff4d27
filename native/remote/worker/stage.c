#include "remote/worker/stage.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#define STAGES_MAX 256
/* more are made only if the oldest does not become free: more would not fit the cache */
#define STAGES_FEW  8
#define PATIENCE_NS 1000000u /* longest wait for the oldest */

static struct cb_stage stages[STAGES_MAX];
static size_t stage_count, next_stage; /* `next`: probably the oldest */
static struct cb_stage *small_copies_stage;
static pthread_mutex_t stages_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t monotonic_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool stage_is_free(const struct cb_stage *s)
{
    /* an error: its context was destroyed */
    return !s->held && (!s->used || CB_CALL(cuEventQuery)(s->event) != CUDA_ERROR_NOT_READY);
}

static struct cb_stage *stage_make(void)
{
    struct cb_stage *s = &stages[stage_count];
    struct cb_pinned pages;
    if (stage_count == STAGES_MAX || !cb_pinned_make(&pages, CB_STAGE_BYTES)) return NULL;
    *s = (struct cb_stage){.pages = pages, .data = pages.data};
    stage_count++;
    return s;
}

static struct cb_stage *stage_find_free(void)
{
    for (size_t i = 0; i < stage_count; i++) {
        if (&stages[i] != small_copies_stage && stage_is_free(&stages[i])) return &stages[i];
    }
    if (stage_count < STAGES_FEW) return stage_make();
    struct cb_stage *oldest = &stages[next_stage++ % stage_count];
    if (oldest == small_copies_stage) oldest = &stages[next_stage++ % stage_count];
    for (uint64_t until = monotonic_ns() + PATIENCE_NS; monotonic_ns() < until; sched_yield()) {
        if (stage_is_free(oldest)) return oldest;
    }
    struct cb_stage *s = stage_make();
    if (s) return s;
    CB_CALL(cuEventSynchronize)(oldest->event);
    return oldest->held ? NULL : oldest;
}

static struct cb_stage *stage_take_locked(void)
{
    CUcontext context = NULL;
    struct cb_stage *s = stage_find_free();
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
    pthread_mutex_lock(&stages_lock);
    struct cb_stage *s = stage_take_locked();
    if (s) s->held = true;
    pthread_mutex_unlock(&stages_lock);
    return s;
}

struct cb_stage *cb_stage_append(CUstream stream, size_t bytes)
{
    CUcontext context = NULL;
    if (bytes > CB_STAGE_BYTES / 4) return cb_stage_take();
    CB_CALL(cuCtxGetCurrent)(&context);
    pthread_mutex_lock(&stages_lock);
    struct cb_stage *s = small_copies_stage;
    if (!s || s->stream != stream || s->context != context || CB_STAGE_BYTES - s->filled < bytes) {
        small_copies_stage = NULL;
        s = small_copies_stage = stage_take_locked();
        if (s) s->stream = stream;
    }
    if (s) s->held = true;
    pthread_mutex_unlock(&stages_lock);
    return s;
}

CUresult cb_stage_used(struct cb_stage *s, CUstream stream)
{
    CUresult result = CB_CALL(cuEventRecord)(s->event, stream);
    if (result != CUDA_SUCCESS)
        CB_CALL(cuStreamSynchronize)(stream); /* without the event its end could not be determined */
    s->used = result == CUDA_SUCCESS;
    return result;
}

CUresult cb_stage_wait(struct cb_stage *s)
{
    return CB_CALL(cuEventSynchronize)(s->event);
}

void cb_stage_release(struct cb_stage *s)
{
    pthread_mutex_lock(&stages_lock);
    s->held = false;
    pthread_mutex_unlock(&stages_lock);
}
