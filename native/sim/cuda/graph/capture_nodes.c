/* Conversion of work issued to a capturing stream into nodes of the capture's graph. */
#include "sim/cuda/graph/capture_nodes.h"

#include "sim/cuda/graph/capture.h"
#include "sim/cuda/graph/graph.h"
#include "sim/cuda/graph/graph_memory.h"

static struct node *node_append(struct stream *s, enum node_kind kind)
{
    struct capture *c = s->capture;
    struct node *n = node_new(c->session->graph, kind, c->tail, c->count);
    if (n && !capture_follow(c, &n, 1)) {
        node_free(n);
        n = NULL;
    }
    return n;
}

bool capture_work(struct stream *s, enum node_kind kind, const struct work *w, const void *params,
                  size_t bytes, CUresult *result)
{
    if (!s->capture) {
        if (!capture_is_implicit(s, true)) return false;
        *result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        return true;
    }
    if (s->capture->session->invalid) {
        *result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return true;
    }
    struct node *n = node_append(s, kind);
    *result = n && node_set_work(n, w) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (n && kind == NODE_KERNEL) memcpy(&n->kernel, params, bytes);
    if (n && kind == NODE_HOST) memcpy(&n->host, params, bytes);
    return true;
}

CUresult capture_graph(struct stream *s, struct graph *g)
{
    struct graph *copy = graph_clone(g);
    struct node *n = copy ? node_append(s, NODE_GRAPH) : NULL;
    if (!n) {
        if (copy) graph_free(copy);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    copy->owned = true;
    n->child = copy;
    return CUDA_SUCCESS;
}

CUresult capture_alloc(struct stream *s, struct pool *p, size_t bytes, CUdeviceptr *out)
{
    struct graph_memory *m;
    CUresult result = graph_memory_new(p->device, bytes, &m);
    if (result != CUDA_SUCCESS) return result;
    struct node *n = node_append(s, NODE_ALLOC);
    if (!n) {
        graph_memory_release(m);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    n->memory = m;
    *out = m->range->base;
    return CUDA_SUCCESS;
}

CUresult capture_free(struct stream *s, CUdeviceptr address)
{
    struct graph_memory *m = graph_memory_at(address);
    if (!m) return CUDA_ERROR_INVALID_VALUE;
    struct node *n = node_append(s, NODE_FREE);
    if (!n) return CUDA_ERROR_OUT_OF_MEMORY;
    __atomic_fetch_add(&m->references, 1, __ATOMIC_RELAXED);
    n->memory = m;
    return CUDA_SUCCESS;
}

void capture_abandon(struct stream *s)
{
    struct session *i = s->capture->session;
    if (i->origin != s) {
        i->invalid = true;
        free(s->capture->tail);
        free(s->capture);
        s->capture = NULL;
        return;
    }
    for (struct stream *o = s->context->streams; o; o = o->next) {
        if (!o->capture || o->capture->session != i) continue;
        free(o->capture->tail);
        free(o->capture);
        o->capture = NULL;
    }
    if (!i->foreign) graph_free(i->graph);
    capture_session_end(i);
}
