#include "remote/client/capture.h"

#include "remote_wrapped.h"

static int open_captures;

EXPORT CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
    CUresult result = cb_remote_cuStreamBeginCapture_v2(hStream, mode);
    if (result == CUDA_SUCCESS) __atomic_fetch_add(&open_captures, 1, __ATOMIC_RELAXED);
    return result;
}

EXPORT CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
    CUresult result = cb_remote_cuStreamEndCapture(hStream, phGraph);
    /* One that was spoiled ends here as well. */
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        __atomic_fetch_sub(&open_captures, 1, __ATOMIC_RELAXED);
    return result;
}

bool cb_is_captured(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (__atomic_load_n(&open_captures, __ATOMIC_RELAXED) <= 0) return false;
    return cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}
