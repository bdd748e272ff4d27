/*
 * Copies between the memory of this process and devices. What goes out is taken along at once, so nobody waits for it:
 * into memory that is known to be ours a copy cannot fail by its addresses. What comes back is waited for.
 */
#include "remote/client/current.h"
#include "remote/client/object.h"
#include "remote/client/range.h"
#include "remote/client/session.h"

static CUresult stream_is_one(CUstream stream)
{
    if ((uintptr_t)stream <= 2 || cb_object_alive((uintptr_t)stream, CB_KIND_STREAM)) return CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_HANDLE;
}

static CUresult begin(struct cb_call *c, enum cb_op op, CUdeviceptr device, size_t bytes, CUstream stream,
                      bool async)
{
    CB_OK(cb_call_begin(c, op, CB_IN_CONTEXT));
    cb_put_word(c, device);
    cb_put_word(c, bytes);
    cb_put_handle(c, CB_KIND_STREAM, (uintptr_t)stream);
    cb_put_word(c, async);
    return CUDA_SUCCESS;
}

static CUresult copy_in(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream, bool async)
{
    if (!bytes) return cb_session_ready() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    if (!src) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(stream_is_one(stream));
    bool known = cb_range_is_device(dst, bytes);
    for (size_t at = 0; at < bytes; at += CB_BULK_MAX) {
        struct cb_call call;
        size_t part = bytes - at < CB_BULK_MAX ? bytes - at : CB_BULK_MAX;
        CB_OK(begin(&call, CB_OP_COPY_IN, dst + at, part, stream, async));
        cb_put_word(&call, !known);
        if (known)
            CB_OK(cb_call_send_with(&call, (const char *)src + at, part));
        else
            CB_OK(cb_call_exchange(&call, (const char *)src + at, part, NULL, 0));
    }
    return CUDA_SUCCESS;
}

static CUresult copy_out(void *dst, CUdeviceptr src, size_t bytes, CUstream stream, bool async)
{
    struct cb_call call;
    if (!bytes) return cb_session_ready() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    if (!dst) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(stream_is_one(stream));
    CB_OK(begin(&call, CB_OP_COPY_OUT, src, bytes, stream, async));
    return cb_call_exchange(&call, NULL, 0, dst, bytes);
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
    return copy_in(dstDevice, srcHost, ByteCount, NULL, false);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                                     CUstream hStream)
{
    return copy_in(dstDevice, srcHost, ByteCount, hStream, true);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    return copy_out(dstHost, srcDevice, ByteCount, NULL, false);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    return copy_out(dstHost, srcDevice, ByteCount, hStream, true);
}

static bool is_here(CUdeviceptr p)
{
    struct cb_range r;
    return !cb_range_of(p, &r) || r.memory != CB_MEMORY_DEVICE;
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    bool to_here = is_here(dst), from_here = is_here(src);
    if (from_here && to_here) {
        CB_OK(cuStreamSynchronize(hStream));
        memmove((void *)dst, (const void *)src, ByteCount);
        return CUDA_SUCCESS;
    }
    if (to_here) return copy_out((void *)dst, src, ByteCount, hStream, true);
    if (from_here) return copy_in(dst, (const void *)src, ByteCount, hStream, true);
    return cuMemcpyDtoDAsync_v2(dst, src, ByteCount, hStream);
}

EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    bool to_here = is_here(dst), from_here = is_here(src);
    if (from_here && to_here) {
        if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
        memmove((void *)dst, (const void *)src, ByteCount);
        return CUDA_SUCCESS;
    }
    if (to_here) return copy_out((void *)dst, src, ByteCount, NULL, false);
    if (from_here) return copy_in(dst, (const void *)src, ByteCount, NULL, false);
    return cuMemcpyDtoD_v2(dst, src, ByteCount);
}
