/* Hooks of contexts. The current contexts of threads are known only in this process. */
#include "remote/client/api/object_table.h"
#include "remote/client/context/context_stack.h"
#include "remote/client/device/device_snapshot.h"
#include "remote/client/memory/device_memory.h"

static struct cb_context primary_contexts[CB_DEVICES_MAX];
static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- primary contexts ---- */

static CUresult primary_activate(struct cb_context *c, CUdevice dev)
{
    struct cb_call call;
    if (!c->id && !cb_context_add(c)) return CUDA_ERROR_OUT_OF_MEMORY;
    CB_OK(cb_call_begin(&call, CB_OP_CONTEXT_PRIMARY, CB_ANYWHERE));
    cb_put_word(&call, (uint64_t)dev);
    cb_put_word(&call, c->flags);
    cb_put_word(&call, c->id);
    CB_OK(cb_call_ask(&call));
    c->device = dev;
    c->primary = c->active = true;
    c->failed = CUDA_SUCCESS;
    return CUDA_SUCCESS;
}

static CUresult primary_get(CUdevice dev, struct cb_context **out)
{
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    *out = cb_device_of(dev) ? &primary_contexts[dev] : NULL;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    struct cb_context *c;
    CB_OK(primary_get(dev, &c));
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&primary_lock);
    CUresult result = c->active ? CUDA_SUCCESS : primary_activate(c, dev);
    if (result == CUDA_SUCCESS) {
        c->references++;
        *pctx = (CUcontext)(uintptr_t)c->id;
    }
    pthread_mutex_unlock(&primary_lock);
    return result;
}

static CUresult primary_deactivate(struct cb_context *c)
{
    struct cb_call call;
    cb_memory_context_ends((CUcontext)(uintptr_t)c->id);
    CB_OK(cb_call_begin(&call, CB_OP_CONTEXT_RESET, CB_ANYWHERE));
    cb_put_word(&call, c->id);
    c->active = false;
    c->references = 0;
    return cb_call_ask(&call);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    struct cb_context *c;
    CB_OK(primary_get(dev, &c));
    pthread_mutex_lock(&primary_lock);
    CUresult result = c->references ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    if (c->references && --c->references == 0) result = primary_deactivate(c);
    pthread_mutex_unlock(&primary_lock);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return cuDevicePrimaryCtxRelease_v2(dev);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    struct cb_context *c;
    CB_OK(primary_get(dev, &c));
    pthread_mutex_lock(&primary_lock);
    CUresult result = c->active ? primary_deactivate(c) : CUDA_SUCCESS;
    pthread_mutex_unlock(&primary_lock);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
    return cuDevicePrimaryCtxReset_v2(dev);
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
    struct cb_context *c;
    CB_OK(primary_get(dev, &c));
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&primary_lock);
    c->flags = flags;
    pthread_mutex_unlock(&primary_lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    struct cb_context *c;
    CB_OK(primary_get(dev, &c));
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    *flags = c->flags;
    *active = c->active;
    return CUDA_SUCCESS;
}

/* ---- other contexts ---- */

static CUresult context_create(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    struct cb_call call;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!pctx || flags & ~(unsigned)CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
    if (!cb_device_of(dev)) return CUDA_ERROR_INVALID_DEVICE;
    if (cb_stack.depth == CB_STACK_MAX) return CUDA_ERROR_OUT_OF_MEMORY;
    struct cb_context *c = calloc(1, sizeof *c);
    if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
    *c = (struct cb_context){.device = dev, .flags = flags};
    CUresult result = cb_context_add(c) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) result = cb_call_begin(&call, CB_OP_CONTEXT_CREATE, CB_ANYWHERE);
    if (result == CUDA_SUCCESS) {
        cb_put_word(&call, flags);
        cb_put_word(&call, (uint64_t)dev);
        cb_put_word(&call, c->id);
        result = cb_call_ask(&call);
    }
    if (result != CUDA_SUCCESS) {
        if (c->id) cb_context_drop(c);
        free(c);
        return result;
    }
    c->active = true;
    cb_stack.id[cb_stack.depth++] = c->id;
    *pctx = (CUcontext)(uintptr_t)c->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    return context_create(pctx, flags, dev);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                               unsigned int flags, CUdevice dev)
{
    if (numParams && paramsArray) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return context_create(pctx, flags, dev);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
                               CUdevice dev)
{
    if (ctxCreateParams && (ctxCreateParams->numExecAffinityParams || ctxCreateParams->cigParams))
        return CUDA_ERROR_NOT_SUPPORTED;
    return context_create(pctx, flags, dev);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    struct cb_call call;
    struct cb_context *c = cb_context_of((uintptr_t)ctx);
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!c || c->primary || !c->active) return CUDA_ERROR_INVALID_CONTEXT;
    cb_memory_context_ends(ctx);
    CB_OK(cb_call_begin(&call, CB_OP_CONTEXT_DESTROY, CB_ANYWHERE));
    cb_put_word(&call, c->id);
    CUresult result = cb_call_ask(&call);
    if (cb_stack.depth && cb_stack.id[cb_stack.depth - 1] == c->id) cb_stack.depth--;
    cb_context_drop(c); /* its memory is kept: another thread may still read it */
    return result;
}

/* ---- the stack of a thread ---- */

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    const struct cb_context *c = cb_context_of((uintptr_t)ctx);
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    if (cb_stack.depth == CB_STACK_MAX) return CUDA_ERROR_OUT_OF_MEMORY;
    cb_stack.id[cb_stack.depth++] = c->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!cb_stack.depth) return CUDA_ERROR_INVALID_CONTEXT;
    cb_stack.depth--;
    if (pctx) *pctx = (CUcontext)(uintptr_t)cb_stack.id[cb_stack.depth];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext ctx)
{
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!ctx) {
        if (cb_stack.depth) cb_stack.depth--;
        return CUDA_SUCCESS;
    }
    const struct cb_context *c = cb_context_of((uintptr_t)ctx);
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    if (!cb_stack.depth) cb_stack.depth = 1;
    cb_stack.id[cb_stack.depth - 1] = c->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *pctx)
{
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    *pctx = cb_stack.depth ? (CUcontext)(uintptr_t)cb_stack.id[cb_stack.depth - 1] : NULL;
    return CUDA_SUCCESS;
}

static CUresult context_current_alive(const struct cb_context **out)
{
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    *out = cb_context_current();
    if (!*out) return cb_stack.depth ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
    return (*out)->active ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    const struct cb_context *c;
    CB_OK(context_current_alive(&c));
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = c->device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    if (!ctx) return cuCtxGetDevice(device);
    const struct cb_context *c = cb_context_of((uintptr_t)ctx);
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = c->device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetFlags(unsigned int *flags)
{
    const struct cb_context *c;
    CB_OK(context_current_alive(&c));
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = c->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
    const struct cb_context *c;
    CB_OK(context_current_alive(&c));
    if ((uintptr_t)hStream > 2 && !cb_object_alive((uintptr_t)hStream, CB_KIND_STREAM))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    *pctx = (CUcontext)(uintptr_t)c->id;
    return CUDA_SUCCESS;
}
