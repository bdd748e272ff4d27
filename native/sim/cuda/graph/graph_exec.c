/*
 * Executable graphs: a copy of the graph whose nodes are submitted, in an order that respects their
 * dependencies, to the stream of the launch.
 */
#include "sim/cuda/context/context.h"
#include "sim/cuda/graph/capture_nodes.h"
#include "sim/cuda/graph/graph.h"
#include "sim/cuda/graph/graph_memory.h"
#include "sim/cuda/graph/graph_node.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/stream.h"
#include "sim/cuda/stream/stream_work.h"

struct exec {
    struct object object;
    struct graph *graph;
    uint64_t flags;
};

static CUresult graph_run(struct graph *g, struct stream *s)
{
    struct node **order = graph_order(g);
    CUresult result = order ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; result == CUDA_SUCCESS && i < g->count; i++) {
        struct node *n = order[i];
        if (n->disabled) continue;
        switch (n->kind) {
        case NODE_KERNEL:
        case NODE_MEMCPY:
        case NODE_MEMSET:
        case NODE_HOST:
            result = stream_submit(s, &n->work);
            break;
        case NODE_GRAPH:
            result = graph_run(n->child, s);
            break;
        case NODE_RECORD_EVENT:
            result = cuEventRecord((CUevent)n->event, (CUstream)s);
            break;
        case NODE_WAIT_EVENT:
            result = cuStreamWaitEvent((CUstream)s, (CUevent)n->event, 0);
            break;
        case NODE_ALLOC:
            result = graph_memory_use(n->memory);
            break;
        case NODE_FREE:
            graph_memory_unuse(n->memory);
            break;
        default:
            break;
        }
    }
    free(order);
    return result;
}

/* Return true if the nodes of this graph and its children can be ordered. */
static bool graph_is_acyclic(struct graph *g)
{
    struct node **order = graph_order(g);
    if (!order) return false;
    free(order);
    for (struct node *n = g->first; n; n = n->next) {
        if (n->child && !graph_is_acyclic(n->child)) return false;
    }
    return true;
}

static CUresult exec_instantiate(CUgraphExec *out, CUgraph hGraph, unsigned long long flags)
{
    CONTEXT_OR_RETURN(c);
    struct graph *g = object_get(hGraph, KIND_GRAPH);
    const unsigned long long known = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                     CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                     CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    if (!out || !g || (flags & ~known)) return CUDA_ERROR_INVALID_VALUE;
    if (!graph_is_acyclic(g)) return CUDA_ERROR_INVALID_VALUE;
    struct exec *e = object_new(KIND_EXEC, sizeof *e);
    if (!e) return CUDA_ERROR_OUT_OF_MEMORY;
    e->flags = flags;
    e->graph = graph_clone(g);
    if (!e->graph) {
        object_free(e);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    e->graph->owned = true;
    *out = (CUgraphExec)e;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
                                            unsigned long long flags)
{
    return exec_instantiate(phGraphExec, hGraph, flags);
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                                      char *logBuffer, size_t bufferSize)
{
    if (phErrorNode) *phErrorNode = NULL;
    if (logBuffer && bufferSize) *logBuffer = 0;
    return exec_instantiate(phGraphExec, hGraph, 0);
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                                   char *logBuffer, size_t bufferSize)
{
    return cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                             CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    if (!instantiateParams) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = exec_instantiate(phGraphExec, hGraph, instantiateParams->flags);
    instantiateParams->hErrNode_out = NULL;
    instantiateParams->result_out =
        result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

static CUresult exec_get(CUgraphExec handle, struct exec **out)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    *out = object_get(handle, KIND_EXEC);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool graph_has_memory_nodes(const struct graph *g)
{
    for (const struct node *n = g->first; n; n = n->next) {
        if (n->memory || (n->child && graph_has_memory_nodes(n->child))) return true;
    }
    return false;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    struct exec *e;
    OK_OR_RETURN(exec_get(hGraphExec, &e));
    struct context *c = context_current();
    /* launches under way may still touch it */
    if (c && graph_has_memory_nodes(e->graph)) context_synchronize(c);
    graph_free(e->graph);
    object_free(e);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags)
{
    struct exec *e;
    OK_OR_RETURN(exec_get(hGraphExec, &e));
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = e->flags;
    return CUDA_SUCCESS;
}

/* With auto-free, free what the last launch left allocated before this launch. */
static void graph_free_remaining(struct graph *g)
{
    for (struct node *n = g->first; n; n = n->next) {
        if (n->kind == NODE_ALLOC && n->memory->live) graph_memory_free(n->memory->range);
        if (n->child) graph_free_remaining(n->child);
    }
}

EXPORT CUresult cuGraphLaunch(CUgraphExec hGraph, CUstream hStream)
{
    struct exec *e;
    struct stream *s;
    CUresult result = exec_get(hGraph, &e);
    if (result == CUDA_SUCCESS) result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (s->capture) return capture_graph(s, e->graph);
    if (e->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) graph_free_remaining(e->graph);
    return graph_run(e->graph, s);
}

EXPORT CUresult cuGraphUpload(CUgraphExec hGraph, CUstream hStream)
{
    struct exec *e;
    struct stream *s;
    CUresult result = exec_get(hGraph, &e);
    return result == CUDA_SUCCESS ? stream_get(hStream, &s) : result;
}

/* ---- changes of an executable ---- */

static CUresult exec_find_node(CUgraphExec exec, CUgraphNode node, enum node_kind kind, struct context **c,
                               struct node **out)
{
    struct exec *e;
    CUresult result = context_enter(c);
    if (result == CUDA_SUCCESS) result = exec_get(exec, &e);
    if (result != CUDA_SUCCESS) return result;
    const struct node *origin = object_get(node, KIND_NODE);
    *out = origin ? graph_find(e->graph, origin) : NULL;
    return *out && (*out)->kind == kind ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                  const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    struct context *c;
    struct node *n;
    CUresult result = exec_find_node(hGraphExec, hNode, NODE_KERNEL, &c, &n);
    return result != CUDA_SUCCESS ? result : node_set_kernel(n, c, nodeParams);
}

EXPORT CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                               const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    CUDA_KERNEL_NODE_PARAMS k = {0};
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&k, nodeParams, sizeof *nodeParams);
    return cuGraphExecKernelNodeSetParams_v2(hGraphExec, hNode, &k);
}

EXPORT CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                               const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    struct context *c;
    struct node *n;
    (void)ctx;
    CUresult result = exec_find_node(hGraphExec, hNode, NODE_MEMCPY, &c, &n);
    return result != CUDA_SUCCESS ? result : node_set_copy(n, c, copyParams);
}

EXPORT CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                               const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    struct context *c;
    struct node *n;
    (void)ctx;
    CUresult result = exec_find_node(hGraphExec, hNode, NODE_MEMSET, &c, &n);
    return result != CUDA_SUCCESS ? result : node_set_fill(n, c, memsetParams);
}

EXPORT CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                             const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    struct context *c;
    struct node *n;
    CUresult result = exec_find_node(hGraphExec, hNode, NODE_HOST, &c, &n);
    return result != CUDA_SUCCESS ? result : node_set_host(n, nodeParams);
}

EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                         CUgraphNodeParams *nodeParams)
{
    struct context *c;
    struct node *n;
    const struct node *origin = object_get(hNode, KIND_NODE);
    if (!origin || !nodeParams) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = exec_find_node(hGraphExec, hNode, origin->kind, &c, &n);
    return result != CUDA_SUCCESS ? result : node_set_any(n, c, nodeParams);
}

EXPORT CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled)
{
    struct context *c;
    struct node *n;
    const struct node *origin = object_get(hNode, KIND_NODE);
    if (!origin || origin->kind > NODE_MEMSET) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = exec_find_node(hGraphExec, hNode, origin->kind, &c, &n);
    if (result == CUDA_SUCCESS) n->disabled = !isEnabled;
    return result;
}

EXPORT CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int *isEnabled)
{
    struct context *c;
    struct node *n;
    const struct node *origin = object_get(hNode, KIND_NODE);
    if (!origin || !isEnabled) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = exec_find_node(hGraphExec, hNode, origin->kind, &c, &n);
    if (result == CUDA_SUCCESS) *isEnabled = !n->disabled;
    return result;
}

/*
 * Return true if both graphs have nodes of the same kinds in the same order with dependencies between the same
 * positions.
 */
static bool graphs_have_same_shape(const struct graph *a, const struct graph *b, struct node **different)
{
    const struct node *x = a->first;
    struct node *y = b->first;
    for (; x && y; x = x->next, y = y->next) {
        *different = y;
        if (x->kind != y->kind || x->depend_count != y->depend_count) return false;
        if (x->kind == NODE_ALLOC || x->kind == NODE_FREE) return false; /* cannot be updated */
        if (x->child && !graphs_have_same_shape(x->child, y->child, different)) return false;
    }
    *different = y;
    return !x && !y;
}

EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                                     CUgraphExecUpdateResultInfo *resultInfo)
{
    struct exec *e;
    struct node *different = NULL;
    struct graph *g = object_get(hGraph, KIND_GRAPH);
    CUresult result = exec_get(hGraphExec, &e);
    if (result != CUDA_SUCCESS) return result;
    if (!g || !resultInfo) return CUDA_ERROR_INVALID_VALUE;
    *resultInfo = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_SUCCESS};
    if (!graphs_have_same_shape(e->graph, g, &different)) {
        resultInfo->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        resultInfo->errorNode = (CUgraphNode)different;
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    struct graph *copy = graph_clone(g);
    if (!copy) return CUDA_ERROR_OUT_OF_MEMORY;
    /* Handles of the instantiated graph remain valid for this executable. */
    for (struct node *x = e->graph->first, *y = copy->first; x; x = x->next, y = y->next)
        y->origin = x->origin;
    graph_free(e->graph);
    copy->owned = true;
    e->graph = copy;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out,
                                  CUgraphExecUpdateResult *updateResult_out)
{
    CUgraphExecUpdateResultInfo info;
    if (!updateResult_out) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuGraphExecUpdate_v2(hGraphExec, hGraph, &info);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE) return result;
    *updateResult_out = info.result;
    if (hErrorNode_out) *hErrorNode_out = info.errorNode;
    return result;
}

EXPORT CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                   CUgraph childGraph)
{
    struct context *c;
    struct node *n, *different = NULL;
    const struct graph *from = object_get(childGraph, KIND_GRAPH);
    OK_OR_RETURN(exec_find_node(hGraphExec, hNode, NODE_GRAPH, &c, &n));
    if (!from || !graphs_have_same_shape(n->child, from, &different)) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {.graph = childGraph}};
    return node_set_any(n, c, &p);
}

static CUresult exec_set_event(CUgraphExec exec, CUgraphNode node, enum node_kind kind, CUevent event)
{
    struct context *c;
    struct node *n;
    struct event *e = object_get(event, KIND_EVENT);
    OK_OR_RETURN(exec_find_node(exec, node, kind, &c, &n));
    if (!e) return CUDA_ERROR_INVALID_VALUE;
    n->event = e;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event)
{
    return exec_set_event(hGraphExec, hNode, NODE_RECORD_EVENT, event);
}

EXPORT CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event)
{
    return exec_set_event(hGraphExec, hNode, NODE_WAIT_EVENT, event);
}
