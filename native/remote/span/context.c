/* The stack of contexts of a thread: one for the program, and each session's own part of it. */
#include "remote/span/device.h"

static struct span_session *session_of_top(void)
{
    return span_stack.depth ? span_current() : NULL;
}

static void context_push(const struct span_session *s, CUcontext context)
{
    span_stack.id[span_stack.depth++] = (uintptr_t)context;
    span_remember(s, context);
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    struct span_session *s = span_of_handle((uintptr_t)ctx);
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!s) return CUDA_ERROR_INVALID_CONTEXT;
    if (span_stack.depth == SPAN_STACK_MAX) return CUDA_ERROR_OUT_OF_MEMORY;
    CB_OK(SPAN_CALL(s, cuCtxPushCurrent_v2)(ctx));
    context_push(s, ctx);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
    struct span_session *s = session_of_top();
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!s) return CUDA_ERROR_INVALID_CONTEXT;
    CB_OK(SPAN_CALL(s, cuCtxPopCurrent_v2)(pctx));
    span_stack.depth--;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext ctx)
{
    struct span_session *s = span_of_handle((uintptr_t)ctx), *before = session_of_top();
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (ctx && !s) return CUDA_ERROR_INVALID_CONTEXT;
    if (!ctx) return before ? cuCtxPopCurrent_v2(NULL) : CUDA_SUCCESS;
    CB_OK(s == before ? SPAN_CALL(s, cuCtxSetCurrent)(ctx) : SPAN_CALL(s, cuCtxPushCurrent_v2)(ctx));
    if (before && s != before) SPAN_CALL(before, cuCtxPopCurrent_v2)(NULL);
    if (before) span_stack.depth--;
    context_push(s, ctx);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *pctx)
{
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    *pctx = span_stack.depth ? (CUcontext)(uintptr_t)span_stack.id[span_stack.depth - 1] : NULL;
    return CUDA_SUCCESS;
}

/* ---- creation ---- */

static CUresult context_created(CUresult result, const struct span_session *s, const CUcontext *pctx)
{
    if (result == CUDA_SUCCESS) context_push(s, *pctx);
    return result;
}

static CUresult device_for_context(CUdevice dev, const CUcontext *pctx, struct span_device *d)
{
    CB_OK(span_device(dev, d));
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    return span_stack.depth == SPAN_STACK_MAX ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    struct span_device d;
    CB_OK(device_for_context(dev, pctx, &d));
    return context_created(SPAN_CALL(d.session, cuCtxCreate_v2)(pctx, flags, d.local), d.session, pctx);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                               unsigned int flags, CUdevice dev)
{
    struct span_device d;
    CB_OK(device_for_context(dev, pctx, &d));
    CUresult result = SPAN_CALL(d.session, cuCtxCreate_v3)(pctx, paramsArray, numParams, flags, d.local);
    return context_created(result, d.session, pctx);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
                               CUdevice dev)
{
    struct span_device d;
    CB_OK(device_for_context(dev, pctx, &d));
    return context_created(SPAN_CALL(d.session, cuCtxCreate_v4)(pctx, ctxCreateParams, flags, d.local),
                           d.session, pctx);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    struct span_session *s = span_of_handle((uintptr_t)ctx);
    CUcontext now = NULL;
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!s) return CUDA_ERROR_INVALID_CONTEXT;
    bool was_current = span_stack.depth && span_stack.id[span_stack.depth - 1] == (uintptr_t)ctx;
    CUresult result = SPAN_CALL(s, cuCtxDestroy_v2)(ctx);
    SPAN_CALL(s, cuCtxGetCurrent)(&now);
    if (was_current && (result == CUDA_SUCCESS || now != ctx)) span_stack.depth--;
    return result;
}

/* ---- thread state, whatever context is current ---- */

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!mode) return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode wanted = *mode;
    for (unsigned int i = 0; i < span_count; i++) {
        CUstreamCaptureMode one = wanted;
        CB_OK(SPAN_CALL(&span_sessions[i], cuThreadExchangeStreamCaptureMode)(&one));
        if (i == 0) *mode = one;
    }
    return CUDA_SUCCESS;
}
