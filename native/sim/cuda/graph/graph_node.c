/* Setting the parameters of graph nodes from the public structures. */
#include "sim/cuda/graph/graph_node.h"

#include "sim/cuda/graph/graph.h"
#include "sim/cuda/graph/graph_memory.h"
#include "sim/cuda/launch/launch.h"
#include "sim/cuda/memory/copy.h"
#include "sim/cuda/memory/fill.h"
#include "sim/cuda/module/module.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/stream/stream_work.h"

CUresult node_set_kernel(struct node *n, struct context *c, const CUDA_KERNEL_NODE_PARAMS *p)
{
    _Alignas(16) unsigned char buffer[LAUNCH_BYTES];
    struct work w;
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    const void *handle = p->func ? (const void *)p->func : (const void *)p->kern;
    MODULES_LOCKED;
    struct function *f = object_get(handle, KIND_FUNCTION);
    if (!f) return CUDA_ERROR_INVALID_VALUE;
    const struct launch_shape shape = {.grid = {p->gridDimX, p->gridDimY, p->gridDimZ},
                                       .block = {p->blockDimX, p->blockDimY, p->blockDimZ},
                                       .dynamic_shared_bytes = p->sharedMemBytes};
    CUresult result = launch_prepare(f, &shape, p->kernelParams, p->extra, c, &w, buffer);
    if (result != CUDA_SUCCESS) return result;
    if (!node_set_work(n, &w)) return CUDA_ERROR_OUT_OF_MEMORY;
    n->kernel = *p;
    n->kernel.func = (CUfunction)f;
    return CUDA_SUCCESS;
}

CUresult node_set_copy(struct node *n, struct context *c, const CUDA_MEMCPY3D *p)
{
    struct work w;
    _Alignas(16) unsigned char buffer[COPY_BYTES];
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = copy_prepare(c, p, &w, buffer);
    if (result != CUDA_SUCCESS) return result;
    return node_set_work(n, &w) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult node_set_fill(struct node *n, struct context *c, const CUDA_MEMSET_NODE_PARAMS *p)
{
    struct work w;
    _Alignas(16) unsigned char buffer[COPY_BYTES];
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fill_prepare(c, p, &w, buffer);
    if (result != CUDA_SUCCESS) return result;
    return node_set_work(n, &w) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult host_node_effect(struct context *c, void *argument)
{
    const CUDA_HOST_NODE_PARAMS *p = argument;
    (void)c;
    p->fn(p->userData);
    return CUDA_SUCCESS;
}

CUresult node_set_host(struct node *n, const CUDA_HOST_NODE_PARAMS *p)
{
    if (!p || !p->fn) return CUDA_ERROR_INVALID_VALUE;
    struct work w = {
        .kind = WORK_HOST, .effect = host_node_effect, .argument = (void *)p, .argument_bytes = sizeof *p};
    n->host = *p;
    return node_set_work(n, &w) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult node_set_child(struct node *n, CUgraph child)
{
    struct graph *from = object_get(child, KIND_GRAPH);
    if (!from) return CUDA_ERROR_INVALID_VALUE;
    struct graph *copy = graph_clone(from);
    if (!copy) return CUDA_ERROR_OUT_OF_MEMORY;
    if (n->child) graph_free(n->child);
    copy->owned = true;
    n->child = copy;
    return CUDA_SUCCESS;
}

CUresult node_set_event(struct node *n, CUevent event)
{
    n->event = object_get(event, KIND_EVENT);
    return n->event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult node_set_free(struct node *n, CUdeviceptr address)
{
    n->memory = graph_memory_at(address);
    if (!n->memory) return CUDA_ERROR_INVALID_VALUE;
    __atomic_fetch_add(&n->memory->references, 1, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

enum node_kind node_kind_of(CUgraphNodeType type)
{
    switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return NODE_KERNEL;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return NODE_MEMCPY;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return NODE_MEMSET;
    case CU_GRAPH_NODE_TYPE_HOST:
        return NODE_HOST;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return NODE_GRAPH;
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return NODE_EMPTY;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return NODE_WAIT_EVENT;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return NODE_RECORD_EVENT;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return NODE_ALLOC;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return NODE_FREE;
    default:
        return (enum node_kind) - 1;
    }
}

CUresult node_set_any(struct node *n, struct context *c, const CUgraphNodeParams *p)
{
    if (node_kind_of(p->type) != n->kind) return CUDA_ERROR_INVALID_VALUE;
    switch (n->kind) {
    case NODE_KERNEL: {
        CUDA_KERNEL_NODE_PARAMS k;
        memcpy(&k, &p->kernel, sizeof k); /* the same fields at the same offsets */
        return node_set_kernel(n, c, &k);
    }
    case NODE_MEMCPY:
        return node_set_copy(n, c, &p->memcpy.copyParams);
    case NODE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS f = {p->memset.dst,         p->memset.pitch, p->memset.value,
                                     p->memset.elementSize, p->memset.width, p->memset.height};
        return node_set_fill(n, c, &f);
    }
    case NODE_HOST: {
        CUDA_HOST_NODE_PARAMS h = {p->host.fn, p->host.userData};
        return node_set_host(n, &h);
    }
    case NODE_GRAPH:
        return node_set_child(n, p->graph.graph);
    case NODE_WAIT_EVENT:
        return node_set_event(n, p->eventWait.event);
    case NODE_RECORD_EVENT:
        return node_set_event(n, p->eventRecord.event);
    case NODE_FREE:
        return n->memory ? CUDA_ERROR_INVALID_VALUE : node_set_free(n, p->free.dptr);
    case NODE_ALLOC:
        return CUDA_ERROR_INVALID_VALUE;
    default:
        return CUDA_SUCCESS;
    }
}
