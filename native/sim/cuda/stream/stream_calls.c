/* Driver calls that create, query and destroy streams. */
#include "sim/cuda/context/context.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/graph/capture_nodes.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/stream.h"
#include "sim/cuda/stream/stream_destroy.h"
#include "sim/cuda/stream/stream_work.h"

EXPORT CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    CONTEXT_OR_RETURN(c);
    if (!phStream || (flags & ~1u)) return CUDA_ERROR_INVALID_VALUE;
    struct stream *s = stream_new(c, flags, priority);
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
    if (!s && object_get(hStream, KIND_STREAM_ORPHAN)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!s || s->legacy || s->per_thread) return CUDA_ERROR_INVALID_HANDLE;
    struct context *c = s->context;
    if (s->capture) capture_abandon(s);
    pthread_mutex_lock(&c->lock);
    stream_begin_destroy(s);
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
    STREAM_OR_RETURN(s, hStream);
    if (s->capture) return capture_refuse(s);
    if (!stream_idle(s)) return CUDA_ERROR_NOT_READY;
    return context_health(s->context);
}

EXPORT CUresult cuStreamGetPriority(CUstream hStream, int *priority)
{
    STREAM_OR_RETURN(s, hStream);
    if (!priority) return CUDA_ERROR_INVALID_VALUE;
    *priority = s->priority;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetFlags(CUstream hStream, unsigned int *flags)
{
    STREAM_OR_RETURN(s, hStream);
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = s->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetId(CUstream hStream, unsigned long long *streamId)
{
    STREAM_OR_RETURN(s, hStream);
    if (!streamId) return CUDA_ERROR_INVALID_VALUE;
    *streamId = s->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
    STREAM_OR_RETURN(s, hStream);
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    *pctx = (CUcontext)s->context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx)
{
    STREAM_OR_RETURN(s, hStream);
    if (!pCtx || !pGreenCtx) return CUDA_ERROR_INVALID_VALUE;
    *pCtx = (CUcontext)context_home(s->context);
    *pGreenCtx = s->context->green;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetDevice(CUstream hStream, CUdevice *device)
{
    STREAM_OR_RETURN(s, hStream);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = s->context->device->ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetAttribute(CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue *value)
{
    STREAM_OR_RETURN(s, hStream);
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    memset(value, 0, sizeof *value);
    if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = s->priority;
    if (attr == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY)
        value->syncPolicy = s->sync_policy ? (CUsynchronizationPolicy)s->sync_policy : CU_SYNC_POLICY_AUTO;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue *value)
{
    STREAM_OR_RETURN(s, hStream);
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
    OK_OR_RETURN(stream_get(hStream, &s));
    return memory_is_ours(dptr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
