/* Driver calls of several operations: memory operations of a stream, and batches of copies. */
#include "sim/cuda/context/context.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"

EXPORT CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count,
                                      CUstreamBatchMemOpParams *paramArray, unsigned int flags)
{
    CUresult result = CUDA_SUCCESS;
    if (flags || count > 256 || (count && !paramArray)) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const CUstreamBatchMemOpParams *p = &paramArray[i];
        switch (p->operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
            result =
                cuStreamWaitValue32_v2(stream, p->waitValue.address, p->waitValue.value, p->waitValue.flags);
            break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
            result = cuStreamWaitValue64_v2(stream, p->waitValue.address, p->waitValue.value64,
                                            p->waitValue.flags);
            break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
            result = cuStreamWriteValue32_v2(stream, p->writeValue.address, p->writeValue.value,
                                             p->writeValue.flags);
            break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
            result = cuStreamWriteValue64_v2(stream, p->writeValue.address, p->writeValue.value64,
                                             p->writeValue.flags);
            break;
        case CU_STREAM_MEM_OP_BARRIER:
        case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: /* effects are in order already */
            break;
        default:
            result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    return result;
}

EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                      CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
                                      CUstream hStream)
{
    CUresult result = CUDA_SUCCESS;
    if (!dsts || !srcs || !sizes || !count || !attrs || !attrsIdxs || !numAttrs || numAttrs > count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = cuMemcpyAsync(dsts[i], srcs[i], sizes[i], hStream);
    return result;
}

EXPORT CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                   CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
                                   size_t *failIdx, CUstream hStream)
{
    if (failIdx) *failIdx = SIZE_MAX;
    return cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, hStream);
}

EXPORT CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                           CUflushGPUDirectRDMAWritesScope scope)
{
    struct context *c;
    (void)target;
    (void)scope;
    return context_enter(&c);
}
