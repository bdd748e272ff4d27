/* Streams: the legacy default stream, one per thread, and the dependencies of a stream on others. */
#include "sim/cuda/stream/stream.h"

#include "sim/cuda/context/context.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"

static __thread struct {
    struct stream *stream;
    struct context *context;
    uint64_t context_id;
} thread_default; /* the per-thread stream last used by this thread */

struct stream *stream_new(struct context *c, unsigned int flags, int priority)
{
    struct stream *s = object_new(KIND_STREAM, sizeof *s);
    if (!s) return NULL;
    s->context = c;
    s->flags = flags;
    s->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    s->id = __atomic_add_fetch(&process.next_id, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&c->lock);
    s->next = c->streams;
    c->streams = s;
    pthread_mutex_unlock(&c->lock);
    return s;
}

static struct stream *stream_legacy(struct context *c)
{
    struct stream *s = __atomic_load_n(&c->legacy, __ATOMIC_ACQUIRE);
    if (s) return s;
    static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&making);
    s = c->legacy;
    if (!s && (s = stream_new(c, CU_STREAM_DEFAULT, 0))) {
        s->legacy = true;
        s->id = 1;
        __atomic_store_n(&c->legacy, s, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&making);
    return s;
}

static struct stream *per_thread_stream(struct context *c)
{
    if (thread_default.stream && thread_default.context == c && thread_default.context_id == c->id)
        return thread_default.stream;
    struct stream *found = NULL;
    pthread_mutex_lock(&c->lock);
    for (struct stream *s = c->streams; s && !found; s = s->next) {
        if (s->per_thread && pthread_equal(s->owner, pthread_self())) found = s;
    }
    pthread_mutex_unlock(&c->lock);
    if (!found && (found = stream_new(c, CU_STREAM_DEFAULT, 0))) {
        found->owner = pthread_self();
        found->per_thread = true;
    }
    thread_default.stream = found;
    thread_default.context = c;
    thread_default.context_id = c->id;
    return found;
}

static struct stream *stream_default(struct context *c)
{
    return per_thread_default ? per_thread_stream(c) : stream_legacy(c);
}

CUresult stream_get(CUstream handle, struct stream **out)
{
    struct context *c;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    struct stream *s;
    if (handle == NULL)
        s = stream_default(c);
    else if (handle == CU_STREAM_LEGACY)
        s = stream_legacy(c);
    else if (handle == CU_STREAM_PER_THREAD)
        s = c->parent ? NULL : per_thread_stream(c);
    else {
        s = object_get(handle, KIND_STREAM);
        if (!s)
            return object_get(handle, KIND_STREAM_ORPHAN) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                                          : CUDA_ERROR_INVALID_HANDLE;
        if (s->context != c) {
            result = context_health(s->context);
            if (result != CUDA_SUCCESS) return result;
        }
        *out = s;
        return CUDA_SUCCESS;
    }
    *out = s;
    if (!s && c->parent && handle == CU_STREAM_PER_THREAD) return CUDA_ERROR_INVALID_HANDLE;
    return s ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void stream_unlink(struct stream *s)
{
    for (struct stream **p = &s->context->streams; *p; p = &(*p)->next) {
        if (*p != s) continue;
        *p = s->next;
        return;
    }
}

void stream_free(struct stream *s)
{
    if (s->orphaned)
        __atomic_store_n(&s->object.kind, (uint32_t)KIND_STREAM_ORPHAN, __ATOMIC_RELEASE);
    else
        object_free(s);
}

uint64_t stream_last(const struct stream *s)
{
    const struct context *c = s->context;
    if (!stream_blocks(s)) return s->last;
    if (s->legacy) return c->last_blocking;
    uint64_t legacy = c->legacy ? c->legacy->last : 0;
    return s->last > legacy ? s->last : legacy;
}

void stream_posted(struct stream *s, uint64_t last)
{
    if (last > s->last) s->last = last;
    if (stream_blocks(s) && last > s->context->last_blocking) s->context->last_blocking = last;
}

bool depend_is_met(const struct depend *d)
{
    const struct stream *s = d->stream;
    if (!s || (s->object.kind != KIND_STREAM && s->object.kind != KIND_STREAM_ENDING) || s->id != d->id)
        return true;
    return s->finished >= d->finished;
}
