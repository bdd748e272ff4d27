/* Driver calls that add, read and change graph nodes. */
#include "image/image.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/graph/graph.h"
#include "sim/cuda/graph/graph_memory.h"
#include "sim/cuda/graph/graph_node.h"
#include "sim/cuda/launch/launch.h"
#include "sim/cuda/memory/copy.h"
#include "sim/cuda/memory/fill.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"

/* ---- adding ---- */

static CUresult node_add_begin(CUgraphNode *out, CUgraph hGraph, enum node_kind kind,
                               const CUgraphNode *depend, size_t count, struct context **c, struct node **n)
{
    OK_OR_RETURN(context_enter(c));
    struct graph *g = object_get(hGraph, KIND_GRAPH);
    if (!out || !g || (count && !depend)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        const struct node *d = object_get(depend[i], KIND_NODE);
        if (!d || d->graph != g) return CUDA_ERROR_INVALID_VALUE;
    }
    *n = node_new(g, kind, (struct node *const *)depend, count);
    return *n ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult node_add_finish(CUgraphNode *out, struct node *n, CUresult result)
{
    if (result == CUDA_SUCCESS)
        *out = (CUgraphNode)n;
    else
        node_free(n);
    return result;
}

#define ADD(kind, filling)                                                                              \
    struct context *c;                                                                                  \
    struct node *n;                                                                                     \
    CUresult result = node_add_begin(phGraphNode, hGraph, kind, dependencies, numDependencies, &c, &n); \
    return result != CUDA_SUCCESS ? result : node_add_finish(phGraphNode, n, filling)

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                                        const CUgraphNode *dependencies, size_t numDependencies,
                                        const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    ADD(NODE_KERNEL, node_set_kernel(n, c, nodeParams));
}

static CUDA_KERNEL_NODE_PARAMS kernel_params_from_v1(const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    CUDA_KERNEL_NODE_PARAMS k = {0};
    memcpy(&k, p, sizeof *p);
    return k;
}

EXPORT CUresult cuGraphAddKernelNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                     const CUgraphNode *dependencies, size_t numDependencies,
                                     const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS k = kernel_params_from_v1(nodeParams);
    return cuGraphAddKernelNode_v2(phGraphNode, hGraph, dependencies, numDependencies, &k);
}

EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                     const CUgraphNode *dependencies, size_t numDependencies,
                                     const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    (void)ctx;
    ADD(NODE_MEMCPY, node_set_copy(n, c, copyParams));
}

EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                     const CUgraphNode *dependencies, size_t numDependencies,
                                     const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    (void)ctx;
    ADD(NODE_MEMSET, node_set_fill(n, c, memsetParams));
}

EXPORT CUresult cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                   size_t numDependencies, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    ADD(NODE_HOST, node_set_host(n, nodeParams));
}

EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                         const CUgraphNode *dependencies, size_t numDependencies,
                                         CUgraph childGraph)
{
    ADD(NODE_GRAPH, node_set_child(n, childGraph));
}

EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                    size_t numDependencies)
{
    ADD(NODE_EMPTY, CUDA_SUCCESS);
}

EXPORT CUresult cuGraphAddEventRecordNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                          const CUgraphNode *dependencies, size_t numDependencies,
                                          CUevent event)
{
    ADD(NODE_RECORD_EVENT, node_set_event(n, event));
}

EXPORT CUresult cuGraphAddEventWaitNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                        const CUgraphNode *dependencies, size_t numDependencies,
                                        CUevent event)
{
    ADD(NODE_WAIT_EVENT, node_set_event(n, event));
}

static CUresult alloc_node_set(struct node *n, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    struct device *d = p ? device_get(p->poolProps.location.id) : NULL;
    if (!d || p->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = graph_memory_new(d, p->bytesize, &n->memory);
    if (result == CUDA_SUCCESS) p->dptr = n->memory->range->base;
    return result;
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                       const CUgraphNode *dependencies, size_t numDependencies,
                                       CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
    ADD(NODE_ALLOC, alloc_node_set(n, nodeParams));
}

EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                      const CUgraphNode *dependencies, size_t numDependencies,
                                      CUdeviceptr dptr)
{
    ADD(NODE_FREE, node_set_free(n, dptr));
}

static CUresult node_set_new(struct node *n, struct context *c, CUgraphNodeParams *p)
{
    if (n->kind != NODE_ALLOC) return node_set_any(n, c, p);
    CUDA_MEM_ALLOC_NODE_PARAMS a = {.poolProps = p->alloc.poolProps, .bytesize = p->alloc.bytesize};
    CUresult result = alloc_node_set(n, &a);
    p->alloc.dptr = a.dptr;
    return result;
}

EXPORT CUresult cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                               size_t numDependencies, CUgraphNodeParams *nodeParams)
{
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    if (node_kind_of(nodeParams->type) == (enum node_kind) - 1)
        return unserved("cuGraphAddNode of this type");
    ADD(node_kind_of(nodeParams->type), node_set_new(n, c, nodeParams));
}

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                  const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                  CUgraphNodeParams *nodeParams)
{
    (void)dependencyData;
    return cuGraphAddNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}

/* ---- reading and changing ---- */

static struct node *node_get(CUgraphNode handle, enum node_kind kind)
{
    struct node *n = process.ready ? object_get(handle, KIND_NODE) : NULL;
    return n && n->kind == kind ? n : NULL;
}

#define NODE_OR_RETURN(n, handle, kind)                    \
    struct node *n = node_get(handle, kind);               \
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED; \
    if (!n) return CUDA_ERROR_INVALID_VALUE

EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    NODE_OR_RETURN(n, hNode, NODE_KERNEL);
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    if (!n->kernel_pointers) n->kernel_pointers = calloc(PARAMETERS_MAX, sizeof(void *));
    if (!n->kernel_pointers) return CUDA_ERROR_OUT_OF_MEMORY;
    launch_parameters(&n->work, n->kernel_pointers);
    *nodeParams = n->kernel;
    nodeParams->kernelParams = n->kernel_pointers;
    nodeParams->extra = NULL;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    CUDA_KERNEL_NODE_PARAMS k;
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuGraphKernelNodeGetParams_v2(hNode, &k);
    if (result == CUDA_SUCCESS) memcpy(nodeParams, &k, sizeof *nodeParams);
    return result;
}

static CUresult context_enter_current(struct context **c)
{
    return context_enter(c);
}

EXPORT CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    struct context *c;
    NODE_OR_RETURN(n, hNode, NODE_KERNEL);
    CUresult result = context_enter_current(&c);
    return result != CUDA_SUCCESS ? result : node_set_kernel(n, c, nodeParams);
}

EXPORT CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS k = kernel_params_from_v1(nodeParams);
    return cuGraphKernelNodeSetParams_v2(hNode, &k);
}

EXPORT CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D *nodeParams)
{
    NODE_OR_RETURN(n, hNode, NODE_MEMCPY);
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    copy_describe(&n->work, nodeParams);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams)
{
    struct context *c;
    NODE_OR_RETURN(n, hNode, NODE_MEMCPY);
    CUresult result = context_enter_current(&c);
    return result != CUDA_SUCCESS ? result : node_set_copy(n, c, nodeParams);
}

EXPORT CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
    NODE_OR_RETURN(n, hNode, NODE_MEMSET);
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    fill_describe(&n->work, nodeParams);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
    struct context *c;
    NODE_OR_RETURN(n, hNode, NODE_MEMSET);
    CUresult result = context_enter_current(&c);
    return result != CUDA_SUCCESS ? result : node_set_fill(n, c, nodeParams);
}

EXPORT CUresult cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams)
{
    NODE_OR_RETURN(n, hNode, NODE_HOST);
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    *nodeParams = n->host;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    NODE_OR_RETURN(n, hNode, NODE_HOST);
    return node_set_host(n, nodeParams);
}

EXPORT CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph)
{
    NODE_OR_RETURN(n, hNode, NODE_GRAPH);
    if (!phGraph) return CUDA_ERROR_INVALID_VALUE;
    *phGraph = (CUgraph)n->child;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent *event_out)
{
    NODE_OR_RETURN(n, hNode, NODE_RECORD_EVENT);
    if (!event_out) return CUDA_ERROR_INVALID_VALUE;
    *event_out = (CUevent)n->event;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent *event_out)
{
    NODE_OR_RETURN(n, hNode, NODE_WAIT_EVENT);
    if (!event_out) return CUDA_ERROR_INVALID_VALUE;
    *event_out = (CUevent)n->event;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS *params_out)
{
    NODE_OR_RETURN(n, hNode, NODE_ALLOC);
    if (!params_out) return CUDA_ERROR_INVALID_VALUE;
    *params_out = (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = n->memory->device->ordinal}},
        .bytesize = n->memory->range->size,
        .dptr = n->memory->range->base};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr *dptr_out)
{
    NODE_OR_RETURN(n, hNode, NODE_FREE);
    if (!dptr_out) return CUDA_ERROR_INVALID_VALUE;
    *dptr_out = n->memory->range->base;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    struct context *c;
    struct node *n = object_get(hNode, KIND_NODE);
    OK_OR_RETURN(context_enter_current(&c));
    return n && nodeParams ? node_set_any(n, c, nodeParams) : CUDA_ERROR_INVALID_VALUE;
}
