/*
 * Green contexts: contexts in the primary one's address space with some of the multiprocessors.
 *
 * Each is a timeline of its own, which runs beside those of the same process at the speed of its part of the
 * card. Memory and modules made in one belong to the primary context, which it retains.
 */
#include "sim/cuda/context/context_lifecycle.h"
#include "sim/cuda/context/green_resource.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/event.h"
#include "sim/cuda/stream/stream.h"
#include "sim/cuda/stream/stream_work.h"
#include "sim/node/state.h"

struct green {
    struct object object;
    struct context *context;
    struct device *device;
    uint64_t id;
};

EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
    DEVICE_OR_RETURN(d, dev);
    const struct resources *r = object_get(desc, KIND_RESOURCES);
    CUcontext primary;
    if (!phCtx || !r || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
    if (r->device != d) return CUDA_ERROR_INVALID_DEVICE;
    OK_OR_RETURN(cuDevicePrimaryCtxRetain(&primary, dev));
    struct green *g = object_new(KIND_GREEN, sizeof *g);
    struct context *c = g ? object_new(KIND_CONTEXT, sizeof *c) : NULL;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (c) {
        c->device = d;
        c->flags = d->primary->flags;
        c->parent = d->primary;
        c->green = g;
        c->sm_count = r->sm_count;
        result = context_activate(c);
    }
    if (result != CUDA_SUCCESS) {
        if (c) object_free(c);
        if (g) object_free(g);
        cuDevicePrimaryCtxRelease_v2(dev);
        return result;
    }
    g->context = c;
    g->device = d;
    g->id = c->id;
    *phCtx = (CUgreenCtx)g;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx hCtx)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct green *g = object_get(hCtx, KIND_GREEN);
    if (!g) return CUDA_ERROR_INVALID_CONTEXT;
    struct context *c = g->context;
    CUdevice dev = g->device->ordinal;
    object_free(g);
    if (context_top() == c) context_pop();
    context_deactivate(c);
    object_free(c);
    return cuDevicePrimaryCtxRelease_v2(dev);
}

#define GREEN_OR_RETURN(g, handle)                         \
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED; \
    struct green *g = object_get(handle, KIND_GREEN);      \
    if (!g) return CUDA_ERROR_INVALID_CONTEXT

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx)
{
    GREEN_OR_RETURN(g, hCtx);
    if (!pContext) return CUDA_ERROR_INVALID_VALUE;
    *pContext = (CUcontext)g->context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxGetId(CUgreenCtx greenCtx, unsigned long long *greenCtxId)
{
    const struct context *current = context_current();
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    const struct green *g = object_get(greenCtx  ? (void *)greenCtx
                                       : current ? current->green
                                                 : NULL,
                                       KIND_GREEN);
    if (!g) return CUDA_ERROR_INVALID_CONTEXT;
    if (!greenCtxId) return CUDA_ERROR_INVALID_VALUE;
    *greenCtxId = g->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxStreamCreate(CUstream *phStream, CUgreenCtx greenCtx, unsigned int flags,
                                       int priority)
{
    GREEN_OR_RETURN(g, greenCtx);
    if (!phStream || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    OK_OR_RETURN(context_health(g->context));
    struct stream *s = stream_new(g->context, flags, priority);
    if (!s) return CUDA_ERROR_OUT_OF_MEMORY;
    *phStream = (CUstream)s;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx *phCtx)
{
    STREAM_OR_RETURN(s, hStream);
    if (!phCtx) return CUDA_ERROR_INVALID_VALUE;
    *phCtx = s->context->green;
    return CUDA_SUCCESS;
}

static CUresult resource_of_context(const struct context *c, CUdevResource *resource, CUdevResourceType type)
{
    uint32_t all = device_multiprocessors(c->device);
    return resource_whole(c->device, c->sm_count && c->sm_count < all ? c->sm_count : all, resource, type);
}

EXPORT CUresult cuCtxGetDevResource(CUcontext hCtx, CUdevResource *resource, CUdevResourceType type)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    const struct context *c = hCtx ? object_get(hCtx, KIND_CONTEXT) : context_current();
    if (!c || !c->active) return CUDA_ERROR_INVALID_CONTEXT;
    return resource_of_context(c, resource, type);
}

EXPORT CUresult cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource *resource, CUdevResourceType type)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    const struct green *g = object_get(hCtx, KIND_GREEN);
    return g ? resource_of_context(g->context, resource, type) : CUDA_ERROR_INVALID_CONTEXT;
}

/* ---- all work of a context, and events ---- */

/* Invalidate the captures under way in a context; return true if there were any. */
static bool captures_invalidate(struct context *c)
{
    bool found = false;
    pthread_mutex_lock(&c->lock);
    for (struct stream *s = c->streams; s; s = s->next) {
        if (!s->capture) continue;
        (void)capture_refuse(s);
        found = true;
    }
    pthread_mutex_unlock(&c->lock);
    return found;
}

/*
 * Record an event behind all work of a context. A context is one timeline: what it has posted last ends last.
 * Work behind a host function is not posted yet, and is waited for here.
 */
static CUresult event_record_in_context(struct context *c, CUevent hEvent)
{
    struct event *e;
    OK_OR_RETURN(event_get(hEvent, &e));
    if (captures_invalidate(c)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!event_move(e, c)) return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&c->lock);
    while (c->deferred)
        pthread_cond_wait(&c->changed, &c->lock);
    event_unmark(e);
    e->generation++;
    event_stamp(c, e, process.sim.node->queue[c->queue].posted, (struct depend){0}, sim_now());
    pthread_mutex_unlock(&c->lock);
    return CUDA_SUCCESS;
}

/* Make every stream, including the default one, wait for the event. */
static CUresult event_wait_in_all_streams(struct context *c, CUevent hEvent)
{
    struct event *e;
    CUstream streams[128];
    size_t count = 0;
    OK_OR_RETURN(event_get(hEvent, &e));
    if (captures_invalidate(c) || e->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!context_push(c)) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&c->lock);
    for (struct stream *s = c->streams; s && count < sizeof streams / sizeof streams[0]; s = s->next) {
        if (!s->legacy && !s->dying) streams[count++] = (CUstream)s;
    }
    pthread_mutex_unlock(&c->lock);
    CUresult result = cuStreamWaitEvent(CU_STREAM_LEGACY, hEvent, 0);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = cuStreamWaitEvent(streams[i], hEvent, 0);
    context_pop();
    return result;
}

EXPORT CUresult cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent)
{
    GREEN_OR_RETURN(g, hCtx);
    return event_record_in_context(g->context, hEvent);
}

EXPORT CUresult cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent)
{
    GREEN_OR_RETURN(g, hCtx);
    return event_wait_in_all_streams(g->context, hEvent);
}

#define CONTEXT_OF_OR_RETURN(c, handle)                    \
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED; \
    struct context *c = object_get(handle, KIND_CONTEXT);  \
    if (!c || !c->active) return CUDA_ERROR_INVALID_CONTEXT

EXPORT CUresult cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent)
{
    CONTEXT_OF_OR_RETURN(c, hCtx);
    return event_record_in_context(c, hEvent);
}

EXPORT CUresult cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent)
{
    CONTEXT_OF_OR_RETURN(c, hCtx);
    return event_wait_in_all_streams(c, hEvent);
}
