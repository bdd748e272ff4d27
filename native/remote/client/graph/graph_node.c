/* Graph nodes whose parameters hold addresses of this process: the data at these addresses is sent. */
#include "remote/client/api/object_table.h"
#include "remote/client/connection/session.h"
#include "remote/client/launch/launch.h"
#include "remote/client/memory/async_copy.h"
#include "remote/wire/graph.h"

static void dependencies_put(struct cb_call *c, const CUgraphNode *dependencies, size_t count)
{
    if (count && !dependencies) c->failed = CUDA_ERROR_INVALID_VALUE;
    cb_put_word(c, count);
    for (size_t i = 0; i < count && c->failed == CUDA_SUCCESS; i++)
        cb_put_handle(c, CB_KIND_NODE, (uintptr_t)dependencies[i]);
}

/* ---- kernels ---- */

static CUresult kernel_node_put(struct cb_call *c, enum cb_node_change change, uint64_t owner,
                                CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p)
{
    CUfunction function = p && p->func ? p->func : p ? (CUfunction)p->kern : NULL;
    struct cb_function *f = p ? cb_function_of((uintptr_t)function) : NULL;
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (!f->known) CB_OK(cb_function_load_attributes(f));
    CB_OK(cb_call_begin(c, CB_OP_KERNEL_NODE, CB_IN_CONTEXT));
    cb_put_word(c, change);
    if (change != CB_NODE_SET) cb_put_handle(c, change == CB_NODE_ADD ? CB_KIND_GRAPH : CB_KIND_EXEC, owner);
    if (change != CB_NODE_ADD) cb_put_handle(c, CB_KIND_NODE, (uintptr_t)node);
    cb_put_word(c, (uintptr_t)function);
    cb_put_word(c, (uint64_t)p->gridDimY << 32 | p->gridDimX);
    cb_put_word(c, (uint64_t)p->blockDimX << 32 | p->gridDimZ);
    cb_put_word(c, (uint64_t)p->blockDimZ << 32 | p->blockDimY);
    cb_put_word(c, p->sharedMemBytes);
    CUresult result = cb_put_parameters(c, f, p->kernelParams, p->extra);
    if (result != CUDA_SUCCESS && c->failed == CUDA_SUCCESS) c->failed = result;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                                        const CUgraphNode *dependencies, size_t numDependencies,
                                        const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    struct cb_call call;
    if (!phGraphNode) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(kernel_node_put(&call, CB_NODE_ADD, (uintptr_t)hGraph, NULL, nodeParams));
    dependencies_put(&call, dependencies, numDependencies);
    CB_OK(cb_call_ask(&call));
    *phGraphNode = (CUgraphNode)(uintptr_t)cb_take_word(&call);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    struct cb_call call;
    CB_OK(kernel_node_put(&call, CB_NODE_SET, 0, hNode, nodeParams));
    return cb_call_ask(&call);
}

EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                  const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    struct cb_call call;
    CB_OK(kernel_node_put(&call, CB_NODE_EXEC_SET, (uintptr_t)hGraphExec, hNode, nodeParams));
    return cb_call_ask(&call);
}

/* ---- copies ---- */

/* Address of a copy's destination in our memory, if it is filled without a gap. */
static void *dense_destination(const CUDA_MEMCPY3D *p)
{
    bool row = p->Height <= 1 && p->Depth <= 1;
    bool whole = !p->dstXInBytes && !p->dstY && !p->dstZ && p->dstPitch == p->WidthInBytes &&
                 (p->Depth <= 1 || p->dstHeight == p->Height);
    if (!row && !whole) return NULL;
    size_t at = p->dstXInBytes + p->dstPitch * (p->dstY + p->dstHeight * p->dstZ);
    return p->dstHost ? (char *)p->dstHost + at : NULL;
}

EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                     const CUgraphNode *dependencies, size_t numDependencies,
                                     const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    struct cb_call call;
    if (!phGraphNode || !copyParams) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D p = *copyParams;
    bool to_us = p.dstMemoryType == CU_MEMORYTYPE_HOST;
    if (p.srcMemoryType != CU_MEMORYTYPE_DEVICE || (!to_us && p.dstMemoryType != CU_MEMORYTYPE_DEVICE))
        return CUDA_ERROR_NOT_SUPPORTED; /* data of the host is read at each launch: not supported */
    void *to = to_us ? dense_destination(&p) : NULL;
    size_t bytes = p.WidthInBytes * (p.Height ? p.Height : 1) * (p.Depth ? p.Depth : 1);
    if (to_us && (!to || bytes > CB_ASYNC_COPY_MAX)) return CUDA_ERROR_NOT_SUPPORTED;
    if (to_us) {
        p.dstXInBytes = p.dstY = p.dstZ = 0;
        p.dstPitch = p.WidthInBytes;
        p.dstHeight = p.Height;
    }
    p.srcHost = p.dstHost = NULL;
    CB_OK(cb_call_begin(&call, CB_OP_MEMCPY_NODE, CB_ANYWHERE));
    cb_put_handle(&call, CB_KIND_GRAPH, (uintptr_t)hGraph);
    cb_put_handle(&call, CB_KIND_CONTEXT, (uintptr_t)ctx);
    cb_put_bytes(&call, &p, sizeof p);
    dependencies_put(&call, dependencies, numDependencies);
    CB_OK(to_us ? cb_async_copy_ask(&call, to, bytes) : cb_call_ask(&call));
    *phGraphNode = (CUgraphNode)(uintptr_t)cb_take_word(&call);
    return CUDA_SUCCESS;
}

/* ---- memory ---- */

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                       const CUgraphNode *dependencies, size_t numDependencies,
                                       CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
    struct cb_call call;
    if (!phGraphNode || !nodeParams) return CUDA_ERROR_INVALID_VALUE;
    if (nodeParams->accessDescCount) return CUDA_ERROR_NOT_SUPPORTED;
    CB_OK(cb_call_begin(&call, CB_OP_MEM_ALLOC_NODE, CB_NOT_IN_DEAD));
    cb_put_handle(&call, CB_KIND_GRAPH, (uintptr_t)hGraph);
    cb_put_bytes(&call, &nodeParams->poolProps, sizeof nodeParams->poolProps);
    cb_put_word(&call, nodeParams->bytesize);
    dependencies_put(&call, dependencies, numDependencies);
    CB_OK(cb_call_ask(&call));
    *phGraphNode = (CUgraphNode)(uintptr_t)cb_take_word(&call);
    nodeParams->dptr = cb_take_word(&call);
    return CUDA_SUCCESS;
}
