/* Hooks of streams: priorities within the tenant's class, and captures that the limiter must not disturb. */
#include "shim/base.h"

#include "shim/context_book.h"
#include "shim/device.h"
#include "shim/real.h"
#include "shim/start.h"

#include "shim/compute.h"

/*
 * Clamp a priority: a tenant of the best-effort class gets no stream ahead of other tenants'; its priorities
 * start at the lowest, 0.
 */
static int priority_clamp(int device, int priority)
{
    bool held = device >= 0 && cb.limits->device[device].policy == CB_POLICY_BEST_EFFORT;
    return held && priority < 0 ? 0 : priority;
}

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    CB_ENTER();
    priority = priority_clamp(cb_device_current(), priority);
    return CB_REAL(cuStreamCreateWithPriority)(phStream, flags, priority);
}

CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream *phStream, CUgreenCtx greenCtx, unsigned int flags,
                                        int priority)
{
    CB_ENTER();
    priority = priority_clamp(cb_context_device(greenCtx), priority);
    return CB_REAL(cuGreenCtxStreamCreate)(phStream, greenCtx, flags, priority);
}

CUresult CUDAAPI cuStreamDestroy(CUstream hStream)
{
    CB_ENTER();
    cb_compute_forget_stream(hStream);
    return CB_REAL(cuStreamDestroy)(hStream);
}

CUresult CUDAAPI cuStreamDestroy_v2(CUstream hStream)
{
    CB_ENTER();
    cb_compute_forget_stream(hStream);
    return CB_REAL(cuStreamDestroy_v2)(hStream);
}

static CUresult capture_begun(CUresult result)
{
    if (result == CUDA_SUCCESS) cb_compute_capture_begun();
    return result;
}

CUresult CUDAAPI cuStreamBeginCapture(CUstream hStream)
{
    CB_ENTER();
    return capture_begun(CB_REAL(cuStreamBeginCapture)(hStream));
}

CUresult CUDAAPI cuStreamBeginCapture_ptsz(CUstream hStream)
{
    CB_ENTER();
    return capture_begun(CB_REAL(cuStreamBeginCapture_ptsz)(hStream));
}

CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
    CB_ENTER();
    return capture_begun(CB_REAL(cuStreamBeginCapture_v2)(hStream, mode));
}

CUresult CUDAAPI cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode)
{
    CB_ENTER();
    return capture_begun(CB_REAL(cuStreamBeginCapture_v2_ptsz)(hStream, mode));
}

CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                             const CUgraphNode *dependencies,
                                             const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                             CUstreamCaptureMode mode)
{
    CB_ENTER();
    return capture_begun(CB_REAL(cuStreamBeginCaptureToGraph)(hStream, hGraph, dependencies, dependencyData,
                                                              numDependencies, mode));
}

CUresult CUDAAPI cuStreamBeginCaptureToGraph_ptsz(CUstream hStream, CUgraph hGraph,
                                                  const CUgraphNode *dependencies,
                                                  const CUgraphEdgeData *dependencyData,
                                                  size_t numDependencies, CUstreamCaptureMode mode)
{
    CB_ENTER();
    return capture_begun(CB_REAL(cuStreamBeginCaptureToGraph_ptsz)(hStream, hGraph, dependencies,
                                                                   dependencyData, numDependencies, mode));
}

CUresult CUDAAPI cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
    CB_ENTER();
    CUresult result = CB_REAL(cuStreamEndCapture)(hStream, phGraph);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) cb_compute_capture_ended();
    return result;
}

CUresult CUDAAPI cuStreamEndCapture_ptsz(CUstream hStream, CUgraph *phGraph)
{
    CB_ENTER();
    CUresult result = CB_REAL(cuStreamEndCapture_ptsz)(hStream, phGraph);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) cb_compute_capture_ended();
    return result;
}
