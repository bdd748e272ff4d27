/*
 * Streams: the legacy default stream, one per thread, and those that a program makes.
 */
#include "sim/cuda/internal.h"

static __thread struct {
    struct stream *stream;
    struct context *context;
    uint64_t context_id;
} mine; /* the per-thread stream last used by this thread */

static struct stream *make(struct context *c, unsigned int flags, int priority)
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

struct stream *stream_legacy(struct context *c)
{
    struct stream *s = __atomic_load_n(&c->legacy, __ATOMIC_ACQUIRE);
    if (s) return s;
    static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&making);
    s = c->legacy;
    if (!s && (s = make(c, CU_STREAM_DEFAULT, 0))) {
        s->legacy = true;
        s->id = 1;
        __atomic_store_n(&c->legacy, s, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&making);
    return s;
}

static struct stream *per_thread_stream(struct context *c)
{
    if (mine.stream && mine.context == c && mine.context_id == c->id) return mine.stream;
    struct stream *found = NULL;
    pthread_mutex_lock(&c->lock);
    for (struct stream *s = c->streams; s && !found; s = s->next) {
        if (s->per_thread && pthread_equal(s->owner, pthread_self())) found = s;
    }
    pthread_mutex_unlock(&c->lock);
    if (!found && (found = make(c, CU_STREAM_DEFAULT, 0))) {
        found->owner = pthread_self();
        found->per_thread = true;
    }
    mine.stream = found;
    mine.context = c;
    mine.context_id = c->id;
    return found;
}

struct stream *stream_default(struct context *c)
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
        s = per_thread_stream(c);
    else {
        s = object_get(handle, KIND_STREAM);
        if (!s) return CUDA_ERROR_INVALID_HANDLE;
        if (s->context != c) {
            result = context_health(s->context);
            if (result != CUDA_SUCCESS) return result;
        }
        *out = s;
        return CUDA_SUCCESS;
    }
    *out = s;
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

/* Work under way finishes; the stream's thread, if it has one, then frees it. The context's lock is held. */
static void end(struct stream *s)
{
    s->object.kind = KIND_STREAM_ENDING;
    s->dying = true;
    if (s->thread_started) {
        pthread_cond_broadcast(&s->context->changed);
    } else {
        stream_unlink(s);
        object_free(s);
    }
}

void stream_release_all(struct context *c)
{
    pthread_mutex_lock(&c->lock);
    for (struct stream *s = c->streams, *next; s; s = next) {
        next = s->next;
        if (s->capture) capture_abandon(s);
        end(s);
    }
    while (c->streams)
        pthread_cond_wait(&c->changed, &c->lock);
    c->legacy = NULL;
    pthread_mutex_unlock(&c->lock);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    struct context *c;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    if (!phStream || (flags & ~1u)) return CUDA_ERROR_INVALID_VALUE;
    struct stream *s = make(c, flags, priority);
    if (!s) return CUDA_ERROR_OUT_OF_MEMORY;
    *phStream = (CUstream)s;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
    return cuStreamCreateWithPriority(phStream, Flags, 0);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream hStream)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct stream *s = object_get(hStream, KIND_STREAM);
    if (!s || s->legacy || s->per_thread) return CUDA_ERROR_INVALID_HANDLE;
    struct context *c = s->context;
    if (s->capture) capture_abandon(s);
    pthread_mutex_lock(&c->lock);
    end(s);
    pthread_mutex_unlock(&c->lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy(CUstream hStream)
{
    return cuStreamDestroy_v2(hStream);
}

EXPORT CUresult cuStreamSynchronize(CUstream hStream)
{
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (s->capture) return capture_refuse(s);
    result = capture_forbids();
    return result != CUDA_SUCCESS ? result : stream_wait(s);
}

EXPORT CUresult cuStreamQuery(CUstream hStream)
{
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (s->capture) return capture_refuse(s);
    if (!stream_idle(s)) return CUDA_ERROR_NOT_READY;
    return context_health(s->context);
}

EXPORT CUresult cuStreamGetPriority(CUstream hStream, int *priority)
{
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (!priority) return CUDA_ERROR_INVALID_VALUE;
    *priority = s->priority;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetFlags(CUstream hStream, unsigned int *flags)
{
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = s->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetId(CUstream hStream, unsigned long long *streamId)
{
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (!streamId) return CUDA_ERROR_INVALID_VALUE;
    *streamId = s->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    *pctx = (CUcontext)s->context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx)
{
    if (pGreenCtx) *pGreenCtx = NULL;
    return cuStreamGetCtx(hStream, pCtx);
}

EXPORT CUresult cuStreamGetDevice(CUstream hStream, CUdevice *device)
{
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = s->context->device->ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetAttribute(CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue *value)
{
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    memset(value, 0, sizeof *value);
    if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = s->priority;
    if (attr == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY)
        value->syncPolicy = s->sync_policy ? (CUsynchronizationPolicy)s->sync_policy : CU_SYNC_POLICY_AUTO;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue *value)
{
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (attr == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) s->sync_policy = value->syncPolicy;
    if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY) s->priority = value->priority;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCopyAttributes(CUstream dst, CUstream src)
{
    struct stream *to, *from;
    CUresult result = stream_get(dst, &to);
    if (result == CUDA_SUCCESS) result = stream_get(src, &from);
    if (result == CUDA_SUCCESS) to->sync_policy = from->sync_policy;
    return result;
}

EXPORT CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags)
{
    struct stream *s;
    (void)length;
    (void)flags;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    return memory_is_ours(dptr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
