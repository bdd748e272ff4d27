/* Copies between arrays and linear memory: at the worker an array is one row-major run of bytes. */
#include "remote/client/api/object_table.h"
#include "remote/client/memory/copy.h"

static CUresult array_copy_begin(struct cb_call *c, enum cb_op op, CUarray array, size_t offset, size_t bytes,
                                 CUstream stream, bool async)
{
    CB_OK(cb_stream_check(stream));
    CB_OK(cb_call_begin(c, op, CB_IN_CONTEXT));
    cb_put_handle(c, CB_KIND_ARRAY, (uintptr_t)array);
    cb_put_word(c, offset);
    cb_put_word(c, bytes);
    cb_put_handle(c, CB_KIND_STREAM, (uintptr_t)stream);
    cb_put_word(c, async);
    return CUDA_SUCCESS;
}

static CUresult array_copy_in(CUarray array, size_t offset, const void *src, size_t bytes, CUstream stream,
                              bool async)
{
    if (!bytes) return cb_session_ready() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    if ((uintptr_t)src < 4096) return CUDA_ERROR_INVALID_VALUE;
    for (size_t at = 0; at < bytes; at += CB_BULK_MAX) {
        struct cb_call call;
        size_t part = bytes - at < CB_BULK_MAX ? bytes - at : CB_BULK_MAX;
        CB_OK(array_copy_begin(&call, CB_OP_ARRAY_IN, array, offset + at, part, stream, async));
        CB_OK(cb_call_exchange(&call, (const char *)src + at, part, NULL, 0));
    }
    return CUDA_SUCCESS;
}

static CUresult array_copy_out(void *dst, CUarray array, size_t offset, size_t bytes, CUstream stream,
                               bool async)
{
    struct cb_call call;
    if (!bytes) return cb_session_ready() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    if ((uintptr_t)dst < 4096) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(array_copy_begin(&call, CB_OP_ARRAY_OUT, array, offset, bytes, stream, async));
    return cb_call_exchange(&call, NULL, 0, dst, bytes);
}

EXPORT CUresult cuMemcpyHtoA_v2(CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount)
{
    return array_copy_in(dstArray, dstOffset, srcHost, ByteCount, NULL, false);
}

EXPORT CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void *srcHost,
                                     size_t ByteCount, CUstream hStream)
{
    return array_copy_in(dstArray, dstOffset, srcHost, ByteCount, hStream, true);
}

EXPORT CUresult cuMemcpyAtoH_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
    return array_copy_out(dstHost, srcArray, srcOffset, ByteCount, NULL, false);
}

EXPORT CUresult cuMemcpyAtoHAsync_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
                                     CUstream hStream)
{
    return array_copy_out(dstHost, srcArray, srcOffset, ByteCount, hStream, true);
}
