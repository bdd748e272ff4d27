/*
 * Green contexts: some of a card's multiprocessors, in the address space of the primary context.
 *
 * A green context retains the primary one, which the program may never have retained itself: it is charged with
 * the first green context. Launches in a green context are held to the share like all others, so a program
 * gains nothing by the way it divides the multiprocessors that it sees.
 */
#include "shim/base.h"

#include "shim/charge.h"
#include "shim/context_book.h"
#include "shim/device.h"
#include "shim/real.h"
#include "shim/start.h"

#include "shim/compute.h"

/* Handle of the primary context, which is retained for a moment. */
static CUcontext primary_context_handle(CUdevice dev)
{
    CUcontext primary = NULL;
    if (CB_REAL(cuDevicePrimaryCtxRetain)(&primary, dev) != CUDA_SUCCESS) return NULL;
    if (cb_real_is_absent((const void *)CB_REAL(cuDevicePrimaryCtxRelease_v2)))
        (void)CB_REAL(cuDevicePrimaryCtxRelease)(dev);
    else
        (void)CB_REAL(cuDevicePrimaryCtxRelease_v2)(dev);
    return primary;
}

static CUcontext green_as_context(CUgreenCtx green)
{
    CUcontext context = NULL;
    if (CB_REAL(cuCtxFromGreenCtx) != NULL) (void)CB_REAL(cuCtxFromGreenCtx)(&context, green);
    return context;
}

CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
    int device, same;
    uint64_t primary_cost, cost;
    CB_ENTER();
    CUresult result = cb_context_opening(dev, CB_CONTEXT_PRIMARY, &device, &primary_cost);
    if (result != CUDA_SUCCESS) return result;
    result = cb_context_opening(dev, CB_CONTEXT_GREEN, &same, &cost);
    if (result == CUDA_SUCCESS) {
        CB_CALL_DRIVER(result, CB_REAL(cuGreenCtxCreate)(phCtx, desc, dev, flags));
        cb_context_opened(result, result == CUDA_SUCCESS ? *phCtx : NULL, same, cost, CB_CONTEXT_GREEN);
    }
    cb_context_opened(result, result == CUDA_SUCCESS ? primary_context_handle(dev) : NULL, device,
                      primary_cost, CB_CONTEXT_PRIMARY);
    if (result == CUDA_SUCCESS) cb_context_converted(*phCtx, green_as_context(*phCtx));
    return result;
}

CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx hCtx)
{
    struct cb_context green, primary;
    CB_ENTER();
    CUcontext as_context = hCtx != NULL ? green_as_context(hCtx) : NULL;
    CUcontext ending = cb_context_primary_ending(cb_context_device(hCtx), false);
    if (as_context != NULL) cb_compute_forget_context(as_context);
    if (ending != NULL) cb_compute_forget_context(ending);
    CUresult result = CB_REAL(cuGreenCtxDestroy)(hCtx);
    if (result != CUDA_SUCCESS || hCtx == NULL || !cb_context_take(hCtx, -1, true, &green)) return result;
    cb_context_ended(&green);
    if (cb_context_take(NULL, green.device, false, &primary)) cb_context_ended(&primary);
    return result;
}
