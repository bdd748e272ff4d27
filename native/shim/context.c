/* Hooks of the calls that create and destroy contexts; context_book.h has the theory. */
#include "shim/base.h"

#include "shim/charge.h"
#include "shim/context_book.h"
#include "shim/device.h"
#include "shim/mps_admission.h"
#include "shim/real.h"
#include "shim/start.h"

#include "shim/compute.h"

CUresult CUDAAPI cuInit(unsigned int Flags)
{
    CB_ENTER();
    if (__atomic_load_n(&cb.ordinal_count, __ATOMIC_ACQUIRE) > 0) return CB_REAL(cuInit)(Flags);
    cb_devices_narrow();
    int door = cb_mps_admission_enter();
    CUresult result = CB_REAL(cuInit)(Flags);
    cb_mps_admission_leave(door, result);
    if (result == CUDA_SUCCESS) cb_devices_learn();
    return result;
}

#define CREATE(ordinal, kind, out, call)                                                       \
    do {                                                                                       \
        int device;                                                                            \
        uint64_t cost;                                                                         \
        CB_ENTER();                                                                            \
        CUresult result = cb_context_opening(ordinal, kind, &device, &cost);                   \
        if (result != CUDA_SUCCESS) return result;                                             \
        CB_CALL_DRIVER(result, call);                                                          \
        cb_context_opened(result, result == CUDA_SUCCESS ? *(out) : NULL, device, cost, kind); \
        return result;                                                                         \
    } while (0)

CUresult CUDAAPI cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    CREATE(dev, CB_CONTEXT_PLAIN, pctx, CB_REAL(cuCtxCreate)(pctx, flags, dev));
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    CREATE(dev, CB_CONTEXT_PLAIN, pctx, CB_REAL(cuCtxCreate_v2)(pctx, flags, dev));
}

CUresult CUDAAPI cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                                unsigned int flags, CUdevice dev)
{
    CREATE(dev, CB_CONTEXT_PLAIN, pctx, CB_REAL(cuCtxCreate_v3)(pctx, paramsArray, numParams, flags, dev));
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
                                CUdevice dev)
{
    CREATE(dev, CB_CONTEXT_PLAIN, pctx, CB_REAL(cuCtxCreate_v4)(pctx, ctxCreateParams, flags, dev));
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    CREATE(dev, CB_CONTEXT_PRIMARY, pctx, CB_REAL(cuDevicePrimaryCtxRetain)(pctx, dev));
}

CUresult CUDAAPI cuGLCtxCreate(CUcontext *pCtx, unsigned int Flags, CUdevice dev)
{
    CREATE(dev, CB_CONTEXT_PLAIN, pCtx, CB_REAL(cuGLCtxCreate)(pCtx, Flags, dev));
}

CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext *pCtx, unsigned int Flags, CUdevice dev)
{
    CREATE(dev, CB_CONTEXT_PLAIN, pCtx, CB_REAL(cuGLCtxCreate_v2)(pCtx, Flags, dev));
}

static CUresult context_destroy(CUresult (*real)(CUcontext), CUcontext ctx)
{
    struct cb_context context;
    cb_compute_forget_context(ctx);
    CUresult result = real(ctx);
    if (result == CUDA_SUCCESS && ctx != NULL && cb_context_take(ctx, -1, true, &context))
        cb_context_ended(&context);
    return result;
}

CUresult CUDAAPI cuCtxDestroy(CUcontext ctx)
{
    CB_ENTER();
    return context_destroy(CB_REAL(cuCtxDestroy), ctx);
}

CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx)
{
    CB_ENTER();
    return context_destroy(CB_REAL(cuCtxDestroy_v2), ctx);
}

static CUresult primary_context_leave(CUresult (*real)(CUdevice), CUdevice dev, bool reset)
{
    struct cb_context context;
    CUcontext ending = cb_context_primary_ending(cb_device_of(dev), reset);
    if (ending != NULL) cb_compute_forget_context(ending);
    CUresult result = real(dev);
    if (result == CUDA_SUCCESS && cb_context_take(NULL, cb_device_of(dev), reset, &context))
        cb_context_ended(&context);
    return result;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev)
{
    CB_ENTER();
    return primary_context_leave(CB_REAL(cuDevicePrimaryCtxRelease), dev, false);
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    CB_ENTER();
    return primary_context_leave(CB_REAL(cuDevicePrimaryCtxRelease_v2), dev, false);
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice dev)
{
    CB_ENTER();
    return primary_context_leave(CB_REAL(cuDevicePrimaryCtxReset), dev, true);
}

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    CB_ENTER();
    return primary_context_leave(CB_REAL(cuDevicePrimaryCtxReset_v2), dev, true);
}
