/*
 * User objects: something of the program's that lives until nobody refers to it, graphs included.
 */
#include "sim/cuda/graph.h"

struct user {
    struct object object;
    unsigned int references;
    CUhostFn destroy;
    void *data;
};

static void release(struct user *u, unsigned int count)
{
    if (__atomic_sub_fetch(&u->references, count, __ATOMIC_ACQ_REL) != 0) return;
    u->destroy(u->data);
    object_free(u);
}

static bool hold(struct graph *g, struct user *u, unsigned int count, bool retain)
{
    struct held *h = malloc(sizeof *h);
    if (!h) return false;
    if (retain) __atomic_add_fetch(&u->references, count, __ATOMIC_RELAXED);
    *h = (struct held){u, count, g->held};
    g->held = h;
    return true;
}

bool graph_hold_all(struct graph *to, const struct graph *from)
{
    for (const struct held *h = from->held; h; h = h->next) {
        if (!hold(to, h->user, h->count, true)) return false;
    }
    return true;
}

void graph_release_all(struct graph *g)
{
    while (g->held) {
        struct held *h = g->held;
        g->held = h->next;
        release(h->user, h->count);
        free(h);
    }
}

EXPORT CUresult cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy,
                                   unsigned int initialRefcount, unsigned int flags)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!object_out || !destroy || !initialRefcount || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    struct user *u = object_new(KIND_USER, sizeof *u);
    if (!u) return CUDA_ERROR_OUT_OF_MEMORY;
    u->references = initialRefcount;
    u->destroy = destroy;
    u->data = ptr;
    *object_out = (CUuserObject)u;
    return CUDA_SUCCESS;
}

static CUresult get(CUuserObject handle, unsigned int count, struct user **out)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    *out = object_get(handle, KIND_USER);
    return *out && count && count <= 0x7FFFFFFFu ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    struct user *u;
    CUresult result = get(object, count, &u);
    if (result == CUDA_SUCCESS) __atomic_add_fetch(&u->references, count, __ATOMIC_RELAXED);
    return result;
}

EXPORT CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    struct user *u;
    CUresult result = get(object, count, &u);
    if (result != CUDA_SUCCESS) return result;
    if (count > u->references) return CUDA_ERROR_INVALID_VALUE;
    release(u, count);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                        unsigned int flags)
{
    struct user *u;
    struct graph *g = object_get(graph, KIND_GRAPH);
    CUresult result = get(object, count, &u);
    if (result != CUDA_SUCCESS) return result;
    if (!g || (flags & ~(unsigned int)CU_GRAPH_USER_OBJECT_MOVE)) return CUDA_ERROR_INVALID_VALUE;
    return hold(g, u, count, !(flags & CU_GRAPH_USER_OBJECT_MOVE)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    struct user *u;
    struct graph *g = object_get(graph, KIND_GRAPH);
    CUresult result = get(object, count, &u);
    if (result != CUDA_SUCCESS) return result;
    for (struct held **h = g ? &g->held : NULL; h && *h; h = &(*h)->next) {
        if ((*h)->user != u || (*h)->count < count) continue;
        (*h)->count -= count;
        if ((*h)->count == 0) {
            struct held *gone = *h;
            *h = gone->next;
            free(gone);
        }
        release(u, count);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}
