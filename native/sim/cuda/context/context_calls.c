/* Driver calls that create and destroy contexts, primary and others, and that change the stack of a thread. */
#include "sim/cuda/context/context.h"
#include "sim/cuda/context/context_lifecycle.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/stream_work.h"

/* ---- primary contexts ---- */

static pthread_mutex_t primaries_lock = PTHREAD_MUTEX_INITIALIZER;

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    struct device *d = device_get(dev);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!d) return CUDA_ERROR_INVALID_DEVICE;
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&primaries_lock);
    CUresult result = CUDA_SUCCESS;
    if (!d->primary->active) {
        d->primary->flags = d->primary_flags;
        result = context_activate(d->primary);
    }
    if (result == CUDA_SUCCESS) {
        d->primary_references++;
        *pctx = (CUcontext)d->primary;
    }
    pthread_mutex_unlock(&primaries_lock);
    return result;
}

static CUresult primary_drop(CUdevice dev, bool all)
{
    struct device *d = device_get(dev);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!d) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&primaries_lock);
    struct context *c = d->primary;
    if (!all && d->primary_references == 0) {
        pthread_mutex_unlock(&primaries_lock);
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (d->primary_references && !all) d->primary_references--;
    bool gone = c->active && (all || d->primary_references == 0);
    if (gone) {
        d->primary_references = 0;
        context_deactivate(c);
    }
    pthread_mutex_unlock(&primaries_lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    return primary_drop(dev, false);
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return primary_drop(dev, false);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    return primary_drop(dev, true);
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
    return primary_drop(dev, true);
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
    struct device *d = device_get(dev);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!d) return CUDA_ERROR_INVALID_DEVICE;
    if (!context_flags_are_valid(flags)) return CUDA_ERROR_INVALID_VALUE;
    d->primary_flags = flags;
    d->primary->flags = flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    struct device *d = device_get(dev);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!d) return CUDA_ERROR_INVALID_DEVICE;
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    *flags = d->primary_flags;
    *active = d->primary->active;
    return CUDA_SUCCESS;
}

/* ---- other contexts ---- */

static CUresult context_create(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    struct device *d = device_get(dev);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!pctx || !context_flags_are_valid(flags)) return CUDA_ERROR_INVALID_VALUE;
    if (!d) return CUDA_ERROR_INVALID_DEVICE;
    struct context *c = object_new(KIND_CONTEXT, sizeof *c);
    if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
    c->device = d;
    c->flags = flags;
    bool pushed = context_push(c);
    CUresult result = pushed ? context_activate(c) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        if (pushed) context_pop();
        object_free(c);
        return result;
    }
    *pctx = (CUcontext)c;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    return context_create(pctx, flags, dev);
}

EXPORT CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    return context_create(pctx, flags, dev);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                               unsigned int flags, CUdevice dev)
{
    if (numParams < 0 || (numParams > 0 && !paramsArray)) return CUDA_ERROR_INVALID_VALUE;
    return numParams ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : context_create(pctx, flags, dev);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
                               CUdevice dev)
{
    if (ctxCreateParams && (ctxCreateParams->numExecAffinityParams || ctxCreateParams->cigParams))
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return context_create(pctx, flags, dev);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct context *c = object_get(ctx, KIND_CONTEXT);
    if (!c || c->primary || c->parent) return CUDA_ERROR_INVALID_CONTEXT;
    uint64_t not_yet = 0;
    if (!__atomic_compare_exchange_n(&c->ending_ns, &not_yet, sim_now(), false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return CUDA_ERROR_INVALID_CONTEXT; /* another thread is destroying it */
    if (context_top() == c) context_pop();
    context_deactivate(c);
    object_free(c);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDestroy(CUcontext ctx)
{
    return cuCtxDestroy_v2(ctx);
}

EXPORT CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
    CONTEXT_OR_RETURN(c);
    if (!pctx || flags) return CUDA_ERROR_INVALID_VALUE;
    *pctx = (CUcontext)c;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDetach(CUcontext ctx)
{
    return object_get(ctx, KIND_CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* ---- the stack of a thread ---- */

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct context *c = object_get(ctx, KIND_CONTEXT);
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    return context_push(c) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuCtxPushCurrent(CUcontext ctx)
{
    return cuCtxPushCurrent_v2(ctx);
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct context *c = context_pop();
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    if (pctx) *pctx = (CUcontext)c;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent(CUcontext *pctx)
{
    return cuCtxPopCurrent_v2(pctx);
}

EXPORT CUresult cuCtxSetCurrent(CUcontext ctx)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct context *c = object_get(ctx, KIND_CONTEXT);
    if (ctx && !c) return CUDA_ERROR_INVALID_CONTEXT;
    context_set_current(c);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *pctx)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    *pctx = (CUcontext)object_get(context_top(), KIND_CONTEXT);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    struct context *c = context_current();
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = c->device->ordinal;
    return CUDA_SUCCESS;
}

/* The context of a call with an explicit context argument (NULL: the current one). */
static CUresult context_argument(CUcontext ctx, struct context **out)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct context *c = ctx ? object_get(ctx, KIND_CONTEXT) : context_current();
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    if (!c->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *out = c;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    struct context *c;
    OK_OR_RETURN(context_argument(ctx, &c));
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = c->device->ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
    struct context *c;
    OK_OR_RETURN(context_argument(ctx, &c));
    if (!ctxId) return CUDA_ERROR_INVALID_VALUE;
    *ctxId = c->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    struct context *c;
    OK_OR_RETURN(context_argument(ctx, &c));
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void)
{
    struct context *c;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    result = capture_forbids();
    return result != CUDA_SUCCESS ? result : context_synchronize(c);
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
    struct context *c;
    CUresult result = context_argument(ctx, &c);
    return result != CUDA_SUCCESS ? result : context_synchronize(c);
}
