#include "remote/worker/graph.h"

#include "remote/wire/graph.h"
#include "remote/worker/generated.h"
#include "remote/worker/pending_copies.h"

/* ---- wrapped driver functions ---- */

#define FOLLOWED(X)                \
    X(cuGraphInstantiateWithFlags) \
    X(cuGraphLaunch)               \
    X(cuGraphClone)                \
    X(cuGraphAddChildGraphNode)    \
    X(cuGraphExecUpdate)           \
    X(cuGraphExecDestroy)          \
    X(cuGraphDestroy)

#define KEEP(name) static cb_fn_##name driver_##name;
FOLLOWED(KEEP)
#undef KEEP

static CUresult follow_cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    CUresult result = driver_cuGraphInstantiateWithFlags(exec, graph, flags);
    if (result == CUDA_SUCCESS) cb_pending_copy_inherit(*exec, graph);
    return result;
}

static CUresult follow_cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    CUresult result = driver_cuGraphLaunch(exec, stream);
    return result == CUDA_SUCCESS ? cb_pending_copy_graph_launched(exec, stream) : result;
}

static CUresult follow_cuGraphClone(CUgraph *clone, CUgraph graph)
{
    CUresult result = driver_cuGraphClone(clone, graph);
    if (result == CUDA_SUCCESS) cb_pending_copy_inherit(*clone, graph);
    return result;
}

static CUresult follow_cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph,
                                                const CUgraphNode *dependencies, size_t count, CUgraph child)
{
    CUresult result = driver_cuGraphAddChildGraphNode(node, graph, dependencies, count, child);
    if (result == CUDA_SUCCESS) cb_pending_copy_inherit(graph, child);
    return result;
}

static CUresult follow_cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *node,
                                         CUgraphExecUpdateResult *info)
{
    CUresult result = driver_cuGraphExecUpdate(exec, graph, node, info);
    if (result != CUDA_SUCCESS) return result;
    cb_pending_copy_inherit(exec, graph);
    return result;
}

static CUresult follow_cuGraphExecDestroy(CUgraphExec exec)
{
    CUresult result = driver_cuGraphExecDestroy(exec);
    if (result == CUDA_SUCCESS) cb_pending_copy_owner_destroyed(exec);
    return result;
}

static CUresult follow_cuGraphDestroy(CUgraph graph)
{
    CUresult result = driver_cuGraphDestroy(graph);
    if (result == CUDA_SUCCESS) cb_pending_copy_owner_destroyed(graph);
    return result;
}

void cb_graph_follow(void)
{
#define FOLLOW(name)               \
    driver_##name = CB_CALL(name); \
    cb_driver[CB_CUDA_##name] = (void *)follow_##name;
    FOLLOWED(FOLLOW)
#undef FOLLOW
}

/* ---- lists of nodes ---- */

static CUresult list(uint64_t which, CUgraph graph, CUgraphNode node, CUgraphNode *out, CUgraphNode *to,
                     size_t *count)
{
    switch (which) {
    case CB_NODES_ALL:
        return CB_CALL(cuGraphGetNodes)(graph, out, count);
    case CB_NODES_ROOT:
        return CB_CALL(cuGraphGetRootNodes)(graph, out, count);
    case CB_NODES_BEFORE:
        return CB_CALL(cuGraphNodeGetDependencies)(node, out, count);
    case CB_NODES_BEHIND:
        return CB_CALL(cuGraphNodeGetDependentNodes)(node, out, count);
    case CB_NODES_EDGES:
        return CB_CALL(cuGraphGetEdges)(graph, out, to, count);
    default:
        return CB_MALFORMED;
    }
}

CUresult cb_on_NODES(struct cb_request *q)
{
    uint64_t which = cb_take_word(q), id = cb_take_word(q), capacity = cb_take_word(q);
    bool of_node = which == CB_NODES_BEFORE || which == CB_NODES_BEHIND;
    CUgraph graph = of_node ? NULL : cb_object_of(q, CB_KIND_GRAPH, id);
    CUgraphNode node = of_node ? cb_object_of(q, CB_KIND_NODE, id) : NULL;
    if (!cb_taken(q) || capacity > CB_NODES_MAX) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    CUgraphNode *out = capacity ? cb_scratch(q, capacity, sizeof *out) : NULL;
    CUgraphNode *to = capacity ? cb_scratch(q, capacity, sizeof *to) : NULL;
    size_t count = capacity;
    CUresult result = list(which, graph, node, out, which == CB_NODES_EDGES ? to : NULL, &count);
    cb_give_word(q, count);
    for (size_t i = 0; i < count && i < capacity && result == CUDA_SUCCESS; i++) {
        cb_give_word(q, cb_object_name(q, CB_KIND_NODE, out[i]));
        if (which == CB_NODES_EDGES) cb_give_word(q, cb_object_name(q, CB_KIND_NODE, to[i]));
    }
    return result;
}

/* ---- captures ---- */

CUresult cb_on_CAPTURE_INFO(struct cb_request *q)
{
    CUstream stream = cb_object_of(q, CB_KIND_STREAM, cb_take_word(q));
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUgraph graph = NULL;
    const CUgraphNode *nodes = NULL;
    size_t count = 0;
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    CUresult result = CB_CALL(cuStreamGetCaptureInfo_v2)(stream, &status, &id, &graph, &nodes, &count);
    cb_give_word(q, status);
    cb_give_word(q, id);
    cb_give_word(q, cb_object_name(q, CB_KIND_GRAPH, graph));
    cb_give_word(q, count < CB_TAIL_MAX ? count : CB_TAIL_MAX);
    for (size_t i = 0; i < count && i < CB_TAIL_MAX; i++)
        cb_give_word(q, cb_object_name(q, CB_KIND_NODE, nodes[i]));
    return result;
}
