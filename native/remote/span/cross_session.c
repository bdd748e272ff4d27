/* Events, launches and nodes that involve several servers, or that hold handles in structures. */
#include "remote/span/device.h"
#include "remote/span/library.h"

/*
 * An event of another server is waited for in this process: what is issued to the stream later comes after it.
 */
EXPORT CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    struct span_visit v;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    struct span_session *other = span_of_handle((uintptr_t)hEvent);
    CB_OK(span_enter(&v, (uintptr_t)hStream > 2 ? span_of_handle((uintptr_t)hStream) : NULL, 0));
    if (!other || other == v.session) {
        CUresult result = SPAN_CALL(v.session, cuStreamWaitEvent)(hStream, hEvent, Flags);
        span_leave(&v);
        return result;
    }
    CUresult result = SPAN_CALL(v.session, cuStreamIsCapturing)(hStream, &status);
    span_leave(&v);
    if (result != CUDA_SUCCESS) return result;
    if (status != CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    return cuEventSynchronize(hEvent);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
                                 void **extra)
{
    struct span_visit v;
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    uint64_t stream = (uintptr_t)config->hStream;
    CB_OK(span_enter(&v, stream > 2 ? span_of_handle(stream) : NULL, 0));
    CUresult result = SPAN_CALL(v.session, cuLaunchKernelEx)(config, span_kernel_function(v.session, f),
                                                             kernelParams, extra);
    span_leave(&v);
    return result;
}

/* ---- kernel nodes ---- */

static CUDA_KERNEL_NODE_PARAMS kernel_params_for_session(const struct span_session *s,
                                                         const CUDA_KERNEL_NODE_PARAMS *p)
{
    CUDA_KERNEL_NODE_PARAMS own = *p;
    own.func = span_kernel_function(s, p->func);
    own.kern = span_kernel(s, p->kern);
    return own;
}

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                                        const CUgraphNode *dependencies, size_t numDependencies,
                                        const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    struct span_visit v;
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(span_enter(&v, span_of_handle((uintptr_t)hGraph), 0));
    CUDA_KERNEL_NODE_PARAMS own = kernel_params_for_session(v.session, nodeParams);
    CUresult result = SPAN_CALL(v.session, cuGraphAddKernelNode_v2)(phGraphNode, hGraph, dependencies,
                                                                    numDependencies, &own);
    span_leave(&v);
    return result;
}

EXPORT CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    struct span_visit v;
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(span_enter(&v, span_of_handle((uintptr_t)hNode), 0));
    CUDA_KERNEL_NODE_PARAMS own = kernel_params_for_session(v.session, nodeParams);
    CUresult result = SPAN_CALL(v.session, cuGraphKernelNodeSetParams_v2)(hNode, &own);
    span_leave(&v);
    return result;
}

EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                  const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    struct span_visit v;
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(span_enter(&v, span_of_handle((uintptr_t)hGraphExec), 0));
    CUDA_KERNEL_NODE_PARAMS own = kernel_params_for_session(v.session, nodeParams);
    CUresult result = SPAN_CALL(v.session, cuGraphExecKernelNodeSetParams_v2)(hGraphExec, hNode, &own);
    span_leave(&v);
    return result;
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                       const CUgraphNode *dependencies, size_t numDependencies,
                                       CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
    struct span_visit v;
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(span_enter(&v, span_of_handle((uintptr_t)hGraph), 0));
    CUmemLocation asked = nodeParams->poolProps.location;
    CUresult result = span_location(v.session, &nodeParams->poolProps.location);
    if (result == CUDA_SUCCESS)
        result = SPAN_CALL(v.session, cuGraphAddMemAllocNode)(phGraphNode, hGraph, dependencies,
                                                              numDependencies, nodeParams);
    nodeParams->poolProps.location = asked;
    span_leave(&v);
    return result;
}
