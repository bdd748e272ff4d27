/*
 * Graphs: launches for the compute limiter, memory nodes for the cap.
 *
 * Memory nodes take memory from the device's graph pool when the graph is launched (with some drivers already
 * when it is instantiated), so both calls are handled like an allocation from that pool, with the sum of the
 * graph's allocation nodes as the most it may grow. The sum is counted once, at instantiation.
 */
#include "shim/base.h"

#include "shim/charge.h"
#include "shim/ledger.h"
#include "shim/pool.h"
#include "shim/real.h"
#include "shim/start.h"

#include "shim/compute.h"

#include <stdlib.h>

#define GRAPH_DEPTH_MAX 16

static int graph_memory_used; /* an executable graph has memory nodes */

static uint64_t graph_nodes_bytes(CUgraph graph, int depth)
{
    size_t count = 0;
    uint64_t total = 0;
    if (graph == NULL || depth > GRAPH_DEPTH_MAX || CB_REAL(cuGraphGetNodes) == NULL ||
        CB_REAL(cuGraphMemAllocNodeGetParams) == NULL ||
        CB_REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return 0;
    CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));
    if (nodes == NULL || CB_REAL(cuGraphGetNodes)(graph, nodes, &count) != CUDA_SUCCESS) count = 0;
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
        CUDA_MEM_ALLOC_NODE_PARAMS params;
        CUgraph child = NULL;
        if (CB_REAL(cuGraphNodeGetType)(nodes[i], &type) != CUDA_SUCCESS) continue;
        if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
            CB_REAL(cuGraphMemAllocNodeGetParams)(nodes[i], &params) == CUDA_SUCCESS)
            total += cb_cost(params.bytesize);
        else if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
                 CB_REAL(cuGraphChildGraphNodeGetGraph)(nodes[i], &child) == CUDA_SUCCESS)
            total += graph_nodes_bytes(child, depth + 1);
    }
    free(nodes);
    return total;
}

/* Record the most that a graph executable may take; stored under its handle with no charge of its own. */
static void graph_bytes_record(CUgraphExec exec, uint64_t bytes)
{
    struct cb_entry entry = {
        .key = (uint64_t)(uintptr_t)exec, .bytes = bytes, .device = -1, .kind = CB_GRAPH_EXEC};
    if (bytes > 0) {
        (void)cb_ledger_put(&entry);
        __atomic_store_n(&graph_memory_used, 1, __ATOMIC_RELEASE);
    }
}

static struct cb_pool *graph_pool(void)
{
    CUdevice ordinal;
    return CB_REAL(cuCtxGetDevice)(&ordinal) == CUDA_SUCCESS ? cb_pool_of_graphs(ordinal) : NULL;
}

#define INSTANTIATE(call)                                                                     \
    do {                                                                                      \
        uint64_t bytes = graph_nodes_bytes(hGraph, 0);                                        \
        struct cb_pool *pool = bytes > 0 ? graph_pool() : NULL;                               \
        if (pool != NULL && !cb_pool_begin(pool, bytes, false)) return cb_pool_refused(pool); \
        CUresult result = call;                                                               \
        if (pool != NULL) (void)cb_pool_end(pool);                                            \
        if (result == CUDA_SUCCESS) graph_bytes_record(*phGraphExec, bytes);                  \
        return result;                                                                        \
    } while (0)

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                                    char *logBuffer, size_t bufferSize)
{
    CB_ENTER();
    INSTANTIATE(CB_REAL(cuGraphInstantiate)(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize));
}

CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                                       char *logBuffer, size_t bufferSize)
{
    CB_ENTER();
    INSTANTIATE(CB_REAL(cuGraphInstantiate_v2)(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize));
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
                                             unsigned long long flags)
{
    CB_ENTER();
    INSTANTIATE(CB_REAL(cuGraphInstantiateWithFlags)(phGraphExec, hGraph, flags));
}

CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    CB_ENTER();
    INSTANTIATE(CB_REAL(cuGraphInstantiateWithParams)(phGraphExec, hGraph, instantiateParams));
}

CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(CUgraphExec *phGraphExec, CUgraph hGraph,
                                                   CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    CB_ENTER();
    INSTANTIATE(CB_REAL(cuGraphInstantiateWithParams_ptsz)(phGraphExec, hGraph, instantiateParams));
}

/*
 * The pool that the executable's memory nodes grow; NULL: none. Looked up only once the process has such an
 * executable.
 */
static struct cb_pool *graph_memory_pool(CUgraphExec exec, uint64_t *bytes)
{
    struct cb_entry entry;
    if (CB_LIKELY(!__atomic_load_n(&graph_memory_used, __ATOMIC_RELAXED)) ||
        !cb_ledger_get(CB_GRAPH_EXEC, (uint64_t)(uintptr_t)exec, &entry))
        return NULL;
    *bytes = entry.bytes;
    return graph_pool();
}

static CUresult graph_launch(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream,
                             bool per_thread)
{
    struct cb_launch launch;
    uint64_t bytes = 0;
    struct cb_pool *pool = graph_memory_pool(exec, &bytes);
    cb_launch_begin(&launch, cb_graph_key(exec), stream, per_thread);
    if (pool != NULL && !cb_pool_begin(pool, bytes, true)) {
        cb_launch_end(&launch, CUDA_ERROR_OUT_OF_MEMORY);
        return cb_pool_refused(pool);
    }
    CUresult result = real(exec, stream);
    if (pool != NULL) (void)cb_pool_end(pool);
    cb_launch_end(&launch, result);
    return result;
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
    CB_ENTER();
    return graph_launch(CB_REAL(cuGraphLaunch), hGraphExec, hStream, hStream == CU_STREAM_PER_THREAD);
}

CUresult CUDAAPI cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
    CB_ENTER();
    return graph_launch(CB_REAL(cuGraphLaunch_ptsz), hGraphExec, hStream, true);
}

/* An upload may already take the memory that the first launch needs. */
static CUresult graph_upload(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream)
{
    uint64_t bytes = 0;
    struct cb_pool *pool = graph_memory_pool(exec, &bytes);
    if (pool != NULL && !cb_pool_begin(pool, bytes, true)) return cb_pool_refused(pool);
    CUresult result = real(exec, stream);
    if (pool != NULL) (void)cb_pool_end(pool);
    return result;
}

CUresult CUDAAPI cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
    CB_ENTER();
    return graph_upload(CB_REAL(cuGraphUpload), hGraphExec, hStream);
}

CUresult CUDAAPI cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
    CB_ENTER();
    return graph_upload(CB_REAL(cuGraphUpload_ptsz), hGraphExec, hStream);
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    struct cb_entry entry;
    CB_ENTER();
    cb_compute_forget_graph(hGraphExec);
    (void)cb_ledger_take(CB_GRAPH_EXEC, (uint64_t)(uintptr_t)hGraphExec, &entry);
    CUresult result = CB_REAL(cuGraphExecDestroy)(hGraphExec);
    cb_pools_settle();
    return result;
}

static CUresult graph_exec_changed(CUgraphExec exec, CUresult result)
{
    if (result == CUDA_SUCCESS) cb_compute_forget_graph(exec);
    return result;
}

CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out,
                                   CUgraphExecUpdateResult *updateResult_out)
{
    CB_ENTER();
    return graph_exec_changed(
        hGraphExec, CB_REAL(cuGraphExecUpdate)(hGraphExec, hGraph, hErrorNode_out, updateResult_out));
}

CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                                      CUgraphExecUpdateResultInfo *resultInfo)
{
    CB_ENTER();
    return graph_exec_changed(hGraphExec, CB_REAL(cuGraphExecUpdate_v2)(hGraphExec, hGraph, resultInfo));
}

CUresult CUDAAPI cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    CB_ENTER();
    return graph_exec_changed(hGraphExec,
                              CB_REAL(cuGraphExecKernelNodeSetParams)(hGraphExec, hNode, nodeParams));
}

CUresult CUDAAPI cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                   const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    CB_ENTER();
    return graph_exec_changed(hGraphExec,
                              CB_REAL(cuGraphExecKernelNodeSetParams_v2)(hGraphExec, hNode, nodeParams));
}

CUresult CUDAAPI cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                          CUgraphNodeParams *nodeParams)
{
    CB_ENTER();
    return graph_exec_changed(hGraphExec, CB_REAL(cuGraphExecNodeSetParams)(hGraphExec, hNode, nodeParams));
}

static void graph_after_fork(void)
{
    graph_memory_used = 0;
}
CB_AT_FORK(graph_after_fork);
