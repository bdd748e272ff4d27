/*
 * The structure of graphs: nodes and their dependencies, cloning, order, and the questions about them.
 */
#include "sim/cuda/graph.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* marks of nodes are in use by one walk at a time */

struct graph *graph_new(void)
{
    return object_new(KIND_GRAPH, sizeof(struct graph));
}

bool node_depend(struct node *n, struct node *on)
{
    for (size_t i = 0; i < n->depend_count; i++) {
        if (n->depend[i] == on) return true;
    }
    struct node **more = realloc(n->depend, (n->depend_count + 1) * sizeof *more);
    if (!more) return false;
    n->depend = more;
    n->depend[n->depend_count++] = on;
    return true;
}

struct node *node_new(struct graph *g, enum node_kind kind, struct node *const *depend, size_t count)
{
    struct node *n = object_new(KIND_NODE, sizeof *n);
    if (!n) return NULL;
    n->graph = g;
    n->kind = kind;
    for (size_t i = 0; i < count; i++) {
        if (!node_depend(n, depend[i])) {
            free(n->depend);
            object_free(n);
            return NULL;
        }
    }
    if (g->last)
        g->last->next = n;
    else
        g->first = n;
    g->last = n;
    g->count++;
    return n;
}

static void empty(struct node *n)
{
    if (n->child) graph_free(n->child);
    if (n->memory) graph_memory_release(n->memory);
    free(n->work.argument);
    free(n->kernel_pointers);
    free(n->depend);
    object_free(n);
}

void node_free(struct node *n)
{
    struct graph *g = n->graph;
    struct node *before = NULL;
    for (struct node *o = g->first; o; o = o->next) {
        if (o->next == n) before = o;
        for (size_t i = 0; i < o->depend_count; i++) {
            if (o->depend[i] == n) o->depend[i--] = o->depend[--o->depend_count];
        }
    }
    if (before)
        before->next = n->next;
    else
        g->first = n->next;
    if (g->last == n) g->last = before;
    g->count--;
    empty(n);
}

void graph_free(struct graph *g)
{
    for (struct node *n = g->first, *next; n; n = next) {
        next = n->next;
        empty(n);
    }
    graph_release_all(g);
    object_free(g);
}

bool node_set_work(struct node *n, const struct work *w)
{
    void *copy = NULL;
    if (w->argument_bytes) {
        copy = malloc(w->argument_bytes);
        if (!copy) return false;
        memcpy(copy, w->argument, w->argument_bytes);
    }
    free(n->work.argument);
    n->work = *w;
    n->work.argument = copy;
    return true;
}

static bool copy_payload(struct node *to, const struct node *from)
{
    to->kernel = from->kernel;
    to->host = from->host;
    to->event = from->event;
    to->disabled = from->disabled;
    if (from->memory) {
        if (!to->memory) __atomic_fetch_add(&from->memory->references, 1, __ATOMIC_RELAXED);
        to->memory = from->memory;
    }
    if (from->child) {
        if (to->child) graph_free(to->child);
        to->child = graph_clone(from->child);
        if (!to->child) return false;
        to->child->owned = true;
    }
    return node_set_work(to, &from->work);
}

struct graph *graph_clone(const struct graph *g)
{
    struct graph *copy = graph_new();
    if (!copy) return NULL;
    if (!graph_hold_all(copy, g)) {
        graph_free(copy);
        return NULL;
    }
    for (struct node *n = g->first; n; n = n->next) {
        struct node *m = node_new(copy, n->kind, NULL, 0);
        bool ok = m && copy_payload(m, n);
        if (m) m->origin = n;
        for (size_t i = 0; ok && i < n->depend_count; i++) {
            struct node *on = copy->first;
            while (on && on->origin != n->depend[i])
                on = on->next;
            /* Dependencies on younger nodes (added later by hand) are joined below. */
            if (on) ok = node_depend(m, on);
        }
        if (!ok) {
            graph_free(copy);
            return NULL;
        }
    }
    for (struct node *m = copy->first; m; m = m->next) {
        for (size_t i = 0; i < m->origin->depend_count; i++) {
            struct node *on = copy->first;
            while (on && on->origin != m->origin->depend[i])
                on = on->next;
            if (on && !node_depend(m, on)) {
                graph_free(copy);
                return NULL;
            }
        }
    }
    return copy;
}

struct node *graph_find(struct graph *g, const struct node *origin)
{
    for (struct node *n = g->first; n; n = n->next) {
        if (n->origin == origin) return n;
        struct node *in = n->child ? graph_find(n->child, origin) : NULL;
        if (in) return in;
    }
    return NULL;
}

struct node **graph_order(struct graph *g)
{
    struct node **out = calloc(g->count + 1, sizeof(struct node *));
    size_t placed = 0;
    if (!out) return NULL;
    pthread_mutex_lock(&lock);
    for (struct node *n = g->first; n; n = n->next)
        n->mark = 0;
    for (bool moved = true; moved && placed < g->count;) {
        moved = false;
        for (struct node *n = g->first; n; n = n->next) {
            bool ready = !n->mark;
            for (size_t i = 0; ready && i < n->depend_count; i++)
                ready = n->depend[i]->mark;
            if (!ready) continue;
            n->mark = 1;
            out[placed++] = n;
            moved = true;
        }
    }
    pthread_mutex_unlock(&lock);
    if (placed == g->count) return out;
    free(out);
    return NULL;
}

/* ---- the calls ---- */

static CUresult get(CUgraph handle, struct graph **out)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    *out = object_get(handle, KIND_GRAPH);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get_node(CUgraphNode handle, struct node **out)
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
    CUresult result = get(hGraph, &g);
    if (result != CUDA_SUCCESS) return result;
    if (g->owned) return CUDA_ERROR_INVALID_VALUE;
    graph_free(g);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
    struct graph *g;
    CUresult result = get(originalGraph, &g);
    if (result != CUDA_SUCCESS) return result;
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
    CUresult result = get(hClonedGraph, &g);
    if (result == CUDA_SUCCESS) result = get_node(hOriginalNode, &n);
    if (result != CUDA_SUCCESS) return result;
    struct node *found = graph_find(g, n);
    if (!phNode || !found) return CUDA_ERROR_INVALID_VALUE;
    *phNode = (CUgraphNode)found;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroyNode(CUgraphNode hNode)
{
    struct node *n;
    CUresult result = get_node(hNode, &n);
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
    CUresult result = get_node(hNode, &n);
    if (result != CUDA_SUCCESS) return result;
    if (!type) return CUDA_ERROR_INVALID_VALUE;
    *type = types[n->kind];
    return CUDA_SUCCESS;
}

/* Write up to *room handles of those that `wanted` accepts; without an array, their number. */
static CUresult list(struct graph *g, CUgraphNode *out, size_t *room, bool roots_only)
{
    size_t n = 0;
    if (!room) return CUDA_ERROR_INVALID_VALUE;
    for (struct node *i = g->first; i; i = i->next) {
        if (roots_only && i->depend_count) continue;
        if (out && n < *room) out[n] = (CUgraphNode)i;
        n++;
    }
    for (size_t i = n; out && i < *room; i++)
        out[i] = NULL;
    *room = out && *room < n ? *room : n;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
    struct graph *g;
    CUresult result = get(hGraph, &g);
    return result != CUDA_SUCCESS ? result : list(g, nodes, numNodes, false);
}

EXPORT CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
    struct graph *g;
    CUresult result = get(hGraph, &g);
    return result != CUDA_SUCCESS ? result : list(g, rootNodes, numRootNodes, true);
}

EXPORT CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                                   CUgraphEdgeData *edgeData, size_t *numEdges)
{
    struct graph *g;
    CUresult result = get(hGraph, &g);
    if (result != CUDA_SUCCESS) return result;
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
    CUresult result = get_node(hNode, &n);
    if (result != CUDA_SUCCESS) return result;
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
    CUresult result = get_node(hNode, &n);
    if (result != CUDA_SUCCESS) return result;
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

static CUresult change(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to, size_t count, bool add)
{
    struct graph *g;
    CUresult result = get(hGraph, &g);
    if (result != CUDA_SUCCESS) return result;
    if (count && (!from || !to)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        struct node *a, *b;
        if (get_node(from[i], &a) != CUDA_SUCCESS || get_node(to[i], &b) != CUDA_SUCCESS || a->graph != g ||
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
    return change(hGraph, from, to, numDependencies, true);
}

EXPORT CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                          const CUgraphEdgeData *edgeData, size_t numDependencies)
{
    (void)edgeData;
    return change(hGraph, from, to, numDependencies, true);
}

EXPORT CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                          size_t numDependencies)
{
    return change(hGraph, from, to, numDependencies, false);
}

EXPORT CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                             const CUgraphEdgeData *edgeData, size_t numDependencies)
{
    (void)edgeData;
    return change(hGraph, from, to, numDependencies, false);
}
