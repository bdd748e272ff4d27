/* Handlers of graph nodes whose parameters hold data of the program. */
#include "remote/wire/graph.h"
#include "remote/worker/generated.h"
#include "remote/worker/launch.h"
#include "remote/worker/outbox.h"
#include "remote/worker/pending_copies.h"

static CUgraphNode *dependencies_take(struct cb_request *q, size_t *count)
{
    *count = cb_take_word(q);
    CUgraphNode *nodes = cb_scratch(q, *count, sizeof *nodes);
    for (size_t i = 0; i < *count && !q->bad; i++)
        nodes[i] = cb_object_of(q, CB_KIND_NODE, cb_take_word(q));
    return nodes;
}

static void kernel_params_take(struct cb_request *q, CUDA_KERNEL_NODE_PARAMS *p)
{
    uint64_t w[4];
    memset(p, 0, sizeof *p);
    p->func = cb_take_function(q);
    for (int i = 0; i < 4; i++)
        w[i] = cb_take_word(q);
    p->gridDimX = (unsigned int)w[0];
    p->gridDimY = (unsigned int)(w[0] >> 32);
    p->gridDimZ = (unsigned int)w[1];
    p->blockDimX = (unsigned int)(w[1] >> 32);
    p->blockDimY = (unsigned int)w[2];
    p->blockDimZ = (unsigned int)(w[2] >> 32);
    p->sharedMemBytes = (unsigned int)w[3];
}

CUresult cb_on_KERNEL_NODE(struct cb_request *q)
{
    CUDA_KERNEL_NODE_PARAMS p;
    uint64_t change = cb_take_word(q);
    if (change > CB_NODE_EXEC_SET) return CB_MALFORMED;
    CUgraph graph = change == CB_NODE_ADD ? cb_object_of(q, CB_KIND_GRAPH, cb_take_word(q)) : NULL;
    CUgraphExec exec = change == CB_NODE_EXEC_SET ? cb_object_of(q, CB_KIND_EXEC, cb_take_word(q)) : NULL;
    CUgraphNode node = change != CB_NODE_ADD ? cb_object_of(q, CB_KIND_NODE, cb_take_word(q)) : NULL;
    kernel_params_take(q, &p);
    size_t bytes = cb_take_word(q), count = 0;
    const void *block = cb_take_block(q, bytes);
    CUgraphNode *before = change == CB_NODE_ADD ? dependencies_take(q, &count) : NULL;
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)block, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    p.extra = bytes ? extra : NULL;
    if (change == CB_NODE_SET) return CB_CALL(cuGraphKernelNodeSetParams_v2)(node, &p);
    if (change == CB_NODE_EXEC_SET) return CB_CALL(cuGraphExecKernelNodeSetParams_v2)(exec, node, &p);
    CUresult result = CB_CALL(cuGraphAddKernelNode_v2)(&node, graph, before, count, &p);
    if (result == CUDA_SUCCESS) cb_give_word(q, cb_object_name(q, CB_KIND_NODE, node));
    return result;
}

/* Copy into our own memory, from where the data is sent after every launch. */
static CUresult copy_node_to_program(struct cb_request *q, CUDA_MEMCPY3D *p, CUgraph graph)
{
    size_t height = p->Height ? p->Height : 1, depth = p->Depth ? p->Depth : 1;
    if (p->WidthInBytes > CB_ASYNC_COPY_MAX || height > CB_ASYNC_COPY_MAX || depth > CB_ASYNC_COPY_MAX ||
        p->WidthInBytes * height > CB_ASYNC_COPY_MAX || p->WidthInBytes * height * depth > CB_ASYNC_COPY_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    uint8_t *data = cb_pending_copy_buffer(p->WidthInBytes * height * depth);
    if (!data) return CUDA_ERROR_OUT_OF_MEMORY;
    p->dstHost = data;
    p->dstXInBytes = p->dstY = p->dstZ = 0;
    p->dstPitch = p->WidthInBytes;
    p->dstHeight = p->Height;
    CUresult result = cb_pending_copy_keep(&q->frame, data, graph);
    if (result != CUDA_SUCCESS) cb_pending_copy_free(data);
    return result;
}

CUresult cb_on_MEMCPY_NODE(struct cb_request *q)
{
    CUDA_MEMCPY3D p;
    CUgraphNode node;
    size_t count;
    CUgraph graph = cb_object_of(q, CB_KIND_GRAPH, cb_take_word(q));
    CUcontext context = cb_object_of(q, CB_KIND_CONTEXT, cb_take_word(q));
    cb_take_bytes(q, &p, sizeof p);
    CUgraphNode *before = dependencies_take(q, &count);
    bool to_us = p.dstMemoryType == CU_MEMORYTYPE_HOST;
    if (!cb_taken(q) || p.srcMemoryType != CU_MEMORYTYPE_DEVICE ||
        (!to_us && p.dstMemoryType != CU_MEMORYTYPE_DEVICE))
        return CB_MALFORMED;
    p.srcHost = p.dstHost = NULL;
    CUresult result = q->failed;
    if (result == CUDA_SUCCESS && to_us) result = copy_node_to_program(q, &p, graph);
    bool kept = to_us && result == CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        result = CB_CALL(cuGraphAddMemcpyNode)(&node, graph, before, count, &p, context);
    if (result == CUDA_SUCCESS) {
        cb_give_word(q, cb_object_name(q, CB_KIND_NODE, node));
    } else if (to_us && !kept) {
        uint64_t nothing = 0;
        cb_outbox_notice(&q->frame, CB_DATA, 0, result, &nothing, 1, NULL, 0);
    }
    return result;
}

CUresult cb_on_MEM_ALLOC_NODE(struct cb_request *q)
{
    CUDA_MEM_ALLOC_NODE_PARAMS p = {0};
    CUgraphNode node;
    size_t count;
    CUgraph graph = cb_object_of(q, CB_KIND_GRAPH, cb_take_word(q));
    cb_take_bytes(q, &p.poolProps, sizeof p.poolProps);
    p.bytesize = cb_take_word(q);
    CUgraphNode *before = dependencies_take(q, &count);
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    p.poolProps.win32SecurityAttributes = NULL;
    CUresult result = CB_CALL(cuGraphAddMemAllocNode)(&node, graph, before, count, &p);
    if (result != CUDA_SUCCESS) return result;
    cb_give_word(q, cb_object_name(q, CB_KIND_NODE, node));
    cb_give_word(q, p.dptr);
    return result;
}
