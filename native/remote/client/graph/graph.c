/* Hooks that list the nodes of graphs. */
#include "remote/wire/graph.h"
#include "remote/client/connection/session.h"

static CUresult node_list(enum cb_nodes which, uint64_t id, CUgraphNode *out, CUgraphNode *to, size_t *count)
{
    struct cb_call call;
    bool edges = which == CB_NODES_EDGES;
    enum cb_kind kind = which == CB_NODES_BEFORE || which == CB_NODES_BEHIND ? CB_KIND_NODE : CB_KIND_GRAPH;
    if (!count || (edges && !out != !to)) return CUDA_ERROR_INVALID_VALUE;
    size_t capacity = out ? *count : 0;
    if (capacity > CB_NODES_MAX) capacity = CB_NODES_MAX;
    CB_OK(cb_call_begin(&call, CB_OP_NODES, CB_ANYWHERE));
    cb_put_word(&call, which);
    cb_put_handle(&call, kind, id);
    cb_put_word(&call, capacity);
    CB_OK(cb_call_ask(&call));
    size_t there = cb_take_word(&call);
    for (size_t i = 0; out && i < *count; i++) {
        out[i] = i < there ? (CUgraphNode)(uintptr_t)cb_take_word(&call) : NULL;
        if (edges) to[i] = i < there ? (CUgraphNode)(uintptr_t)cb_take_word(&call) : NULL;
    }
    *count = there;
    cb_call_end(&call);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
    return node_list(CB_NODES_ALL, (uintptr_t)hGraph, nodes, NULL, numNodes);
}

EXPORT CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
    return node_list(CB_NODES_ROOT, (uintptr_t)hGraph, rootNodes, NULL, numRootNodes);
}

EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies,
                                           size_t *numDependencies)
{
    return node_list(CB_NODES_BEFORE, (uintptr_t)hNode, dependencies, NULL, numDependencies);
}

EXPORT CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                             size_t *numDependentNodes)
{
    return node_list(CB_NODES_BEHIND, (uintptr_t)hNode, dependentNodes, NULL, numDependentNodes);
}

EXPORT CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges)
{
    return node_list(CB_NODES_EDGES, (uintptr_t)hGraph, from, to, numEdges);
}

/* The edges that the worker sends have no edge data. */
static void edge_data_clear(CUgraphEdgeData *data, const size_t *count)
{
    if (data && count) memset(data, 0, *count * sizeof *data);
}

EXPORT CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                                   CUgraphEdgeData *edgeData, size_t *numEdges)
{
    CB_OK(cuGraphGetEdges(hGraph, from, to, numEdges));
    edge_data_clear(from ? edgeData : NULL, numEdges);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode *dependencies,
                                              CUgraphEdgeData *edgeData, size_t *numDependencies)
{
    CB_OK(cuGraphNodeGetDependencies(hNode, dependencies, numDependencies));
    edge_data_clear(dependencies ? edgeData : NULL, numDependencies);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                                CUgraphEdgeData *edgeData, size_t *numDependentNodes)
{
    CB_OK(cuGraphNodeGetDependentNodes(hNode, dependentNodes, numDependentNodes));
    edge_data_clear(dependentNodes ? edgeData : NULL, numDependentNodes);
    return CUDA_SUCCESS;
}

/* The upload is requested by a command of its own. */
EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                             CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    if (!instantiateParams) return CUDA_ERROR_INVALID_VALUE;
    bool upload = instantiateParams->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    CUresult result = cuGraphInstantiateWithFlags(
        phGraphExec, hGraph, instantiateParams->flags & ~(cuuint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
    instantiateParams->hErrNode_out = NULL;
    instantiateParams->result_out =
        result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    if (result == CUDA_SUCCESS && upload)
        result = cuGraphUpload(*phGraphExec, instantiateParams->hUploadStream);
    return result;
}
