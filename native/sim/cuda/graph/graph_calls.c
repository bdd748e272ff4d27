/* Driver calls that build, clone and query graphs. */
#include "sim/cuda/graph/graph.h"
#include "sim/cuda/graph/user_object.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"

static CUresult graph_get(CUgraph handle, struct graph **out)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    *out = object_get(handle, KIND_GRAPH);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult node_get(CUgraphNode handle, struct node **out)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    *out = object_get(handle, KIND_NODE);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!phGraph || flags) return CUDA_ERROR_INVALID_VALUE;
    struct graph *g = graph_new();
    if (!g) return CUDA_ERROR_OUT_OF_MEMORY;
    *phGraph = (CUgraph)g;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph hGraph)
{
    struct graph *g;
    OK_OR_RETURN(graph_get(hGraph, &g));
    if (g->owned) return CUDA_ERROR_INVALID_VALUE;
    graph_free(g);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
    struct graph *g;
    OK_OR_RETURN(graph_get(originalGraph, &g));
    if (!phGraphClone) return CUDA_ERROR_INVALID_VALUE;
    struct graph *copy = graph_clone(g);
    if (!copy) return CUDA_ERROR_OUT_OF_MEMORY;
    *phGraphClone = (CUgraph)copy;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode, CUgraph hClonedGraph)
{
    struct graph *g;
    struct node *n;
    CUresult result = graph_get(hClonedGraph, &g);
    if (result == CUDA_SUCCESS) result = node_get(hOriginalNode, &n);
    if (result != CUDA_SUCCESS) return result;
    struct node *found = graph_find(g, n);
    if (!phNode || !found) return CUDA_ERROR_INVALID_VALUE;
    *phNode = (CUgraphNode)found;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroyNode(CUgraphNode hNode)
{
    struct node *n;
    CUresult result = node_get(hNode, &n);
    if (result == CUDA_SUCCESS) node_free(n);
    return result;
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
    static const CUgraphNodeType types[] = {
        [NODE_KERNEL] = CU_GRAPH_NODE_TYPE_KERNEL,
        [NODE_MEMCPY] = CU_GRAPH_NODE_TYPE_MEMCPY,
        [NODE_MEMSET] = CU_GRAPH_NODE_TYPE_MEMSET,
        [NODE_HOST] = CU_GRAPH_NODE_TYPE_HOST,
        [NODE_GRAPH] = CU_GRAPH_NODE_TYPE_GRAPH,
        [NODE_EMPTY] = CU_GRAPH_NODE_TYPE_EMPTY,
        [NODE_WAIT_EVENT] = CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        [NODE_RECORD_EVENT] = CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        [NODE_ALLOC] = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        [NODE_FREE] = CU_GRAPH_NODE_TYPE_MEM_FREE,
    };
    struct node *n;
    OK_OR_RETURN(node_get(hNode, &n));
    if (!type) return CUDA_ERROR_INVALID_VALUE;
    *type = types[n->kind];
    return CUDA_SUCCESS;
}

/* Write up to *capacity handles of the nodes, or of the roots only; without an array, their number. */
static CUresult nodes_list(struct graph *g, CUgraphNode *out, size_t *capacity, bool roots_only)
{
    size_t n = 0;
    if (!capacity) return CUDA_ERROR_INVALID_VALUE;
    for (struct node *i = g->first; i; i = i->next) {
        if (roots_only && i->depend_count) continue;
        if (out && n < *capacity) out[n] = (CUgraphNode)i;
        n++;
    }
    for (size_t i = n; out && i < *capacity; i++)
        out[i] = NULL;
    *capacity = out && *capacity < n ? *capacity : n;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
    struct graph *g;
    CUresult result = graph_get(hGraph, &g);
    return result != CUDA_SUCCESS ? result : nodes_list(g, nodes, numNodes, false);
}

EXPORT CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
    struct graph *g;
    CUresult result = graph_get(hGraph, &g);
    return result != CUDA_SUCCESS ? result : nodes_list(g, rootNodes, numRootNodes, true);
}

EXPORT CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                                   CUgraphEdgeData *edgeData, size_t *numEdges)
{
    struct graph *g;
    OK_OR_RETURN(graph_get(hGraph, &g));
    if (!numEdges || !from != !to) return CUDA_ERROR_INVALID_VALUE;
    size_t n = 0;
    for (struct node *i = g->first; i; i = i->next) {
        for (size_t k = 0; k < i->depend_count; k++, n++) {
            if (!from || n >= *numEdges) continue;
            from[n] = (CUgraphNode)i->depend[k];
            to[n] = (CUgraphNode)i;
            if (edgeData) memset(&edgeData[n], 0, sizeof edgeData[n]);
        }
    }
    *numEdges = from && *numEdges < n ? *numEdges : n;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges)
{
    return cuGraphGetEdges_v2(hGraph, from, to, NULL, numEdges);
}

EXPORT CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode *dependencies,
                                              CUgraphEdgeData *edgeData, size_t *numDependencies)
{
    struct node *n;
    OK_OR_RETURN(node_get(hNode, &n));
    if (!numDependencies) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; dependencies && i < *numDependencies; i++) {
        dependencies[i] = i < n->depend_count ? (CUgraphNode)n->depend[i] : NULL;
        if (edgeData) memset(&edgeData[i], 0, sizeof edgeData[i]);
    }
    *numDependencies =
        dependencies && *numDependencies < n->depend_count ? *numDependencies : n->depend_count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies,
                                           size_t *numDependencies)
{
    return cuGraphNodeGetDependencies_v2(hNode, dependencies, NULL, numDependencies);
}

EXPORT CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                                CUgraphEdgeData *edgeData, size_t *numDependentNodes)
{
    struct node *n;
    OK_OR_RETURN(node_get(hNode, &n));
    if (!numDependentNodes) return CUDA_ERROR_INVALID_VALUE;
    size_t found = 0;
    for (struct node *i = n->graph->first; i; i = i->next) {
        for (size_t k = 0; k < i->depend_count; k++) {
            if (i->depend[k] != n) continue;
            if (dependentNodes && found < *numDependentNodes) dependentNodes[found] = (CUgraphNode)i;
            if (edgeData && found < *numDependentNodes) memset(&edgeData[found], 0, sizeof edgeData[found]);
            found++;
        }
    }
    *numDependentNodes = dependentNodes && *numDependentNodes < found ? *numDependentNodes : found;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                             size_t *numDependentNodes)
{
    return cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, NULL, numDependentNodes);
}

static CUresult dependencies_change(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                    size_t count, bool add)
{
    struct graph *g;
    OK_OR_RETURN(graph_get(hGraph, &g));
    if (count && (!from || !to)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        struct node *a, *b;
        if (node_get(from[i], &a) != CUDA_SUCCESS || node_get(to[i], &b) != CUDA_SUCCESS || a->graph != g ||
            b->graph != g || a == b)
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        struct node *a = (struct node *)from[i], *b = (struct node *)to[i];
        if (add && !node_depend(b, a)) return CUDA_ERROR_OUT_OF_MEMORY;
        for (size_t k = 0; !add && k < b->depend_count; k++) {
            if (b->depend[k] == a) b->depend[k--] = b->depend[--b->depend_count];
        }
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                       size_t numDependencies)
{
    return dependencies_change(hGraph, from, to, numDependencies, true);
}

EXPORT CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                          const CUgraphEdgeData *edgeData, size_t numDependencies)
{
    (void)edgeData;
    return dependencies_change(hGraph, from, to, numDependencies, true);
}

EXPORT CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                          size_t numDependencies)
{
    return dependencies_change(hGraph, from, to, numDependencies, false);
}

EXPORT CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                             const CUgraphEdgeData *edgeData, size_t numDependencies)
{
    (void)edgeData;
    return dependencies_change(hGraph, from, to, numDependencies, false);
}

EXPORT CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                        unsigned int flags)
{
    struct user *u;
    struct graph *g = object_get(graph, KIND_GRAPH);
    OK_OR_RETURN(user_get(object, count, &u));
    if (!g || (flags & ~(unsigned int)CU_GRAPH_USER_OBJECT_MOVE)) return CUDA_ERROR_INVALID_VALUE;
    return user_hold(&g->held, u, count, (flags & CU_GRAPH_USER_OBJECT_MOVE) != 0);
}

EXPORT CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    struct user *u;
    struct graph *g = object_get(graph, KIND_GRAPH);
    OK_OR_RETURN(user_get(object, count, &u));
    for (struct held **h = g ? &g->held : NULL; h && *h; h = &(*h)->next) {
        if ((*h)->user != u || (*h)->count < count) continue;
        (*h)->count -= count;
        if ((*h)->count == 0) {
            struct held *gone = *h;
            *h = gone->next;
            free(gone);
        }
        user_release(u, count);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}
