/*
 * Copies of bytes. Outgoing data is sent with the command and not waited for: into device memory that is known
 * to be ours a copy cannot fail by its addresses. Incoming data is waited for. Mirrored memory is copied where
 * the devices are.
 */
#include "remote/client/memory/copy.h"

#include "remote/client/api/object_table.h"
#include "remote/client/graph/capture.h"
#include "remote/client/memory/async_copy.h"
#include "remote/client/memory/memory_ranges.h"
#include "remote/client/memory/pinned_mapping.h"
#include "remote/client/stream/host_function.h"

CUresult cb_stream_check(CUstream stream)
{
    if ((uintptr_t)stream <= 2 || cb_object_alive((uintptr_t)stream, CB_KIND_STREAM)) return CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_HANDLE;
}

CUresult cb_copy_finish(struct cb_call *c, bool asks, bool waits)
{
    bool looks = waits && cb_after_wait;
    if (!asks && !looks) return cb_call_send(c);
    CB_OK(cb_call_ask(c));
    if (looks) cb_after_wait(CB_OP_cuCtxSynchronize);
    return CUDA_SUCCESS;
}

static CUresult copy_begin(struct cb_call *c, enum cb_op op, CUdeviceptr device, size_t bytes,
                           CUstream stream, bool async)
{
    CB_OK(cb_call_begin(c, op, CB_IN_CONTEXT));
    cb_put_word(c, device);
    cb_put_word(c, bytes);
    cb_put_handle(c, CB_KIND_STREAM, (uintptr_t)stream);
    cb_put_word(c, async);
    return CUDA_SUCCESS;
}

static CUresult copy_within(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream, bool async)
{
    struct cb_call call;
    CB_OK(copy_begin(&call, CB_OP_COPY_WITHIN, dst, bytes, stream, async));
    cb_put_word(&call, src);
    return cb_copy_finish(&call, !cb_range_is_device(dst, bytes) || !cb_range_is_device(src, bytes), !async);
}

/* Pinned memory in a graph is read and written at each launch, so the worker must have it as well. */
static CUresult pinned_is_captured(const void *host, CUstream stream, bool *captured)
{
    struct cb_range r;
    *captured = cb_range_of((uintptr_t)host, &r) && r.memory == CB_MEMORY_HOST &&
                cb_in_arena(r.address, r.bytes) && cb_is_captured(stream);
    return *captured ? cb_pinned_map_for((uintptr_t)host) : CUDA_SUCCESS;
}

/*
 * Pinned memory is read when the stream reaches the copy. An earlier copy or host function that will write
 * there is waited for.
 */
static CUresult source_wait_ready(const void *src, size_t bytes, CUstream stream)
{
    struct cb_range r;
    bool pinned = cb_range_of((uintptr_t)src, &r) && cb_memory_is_host(r.memory);
    bool waits = cb_async_copy_is_into((uintptr_t)src, bytes) || (pinned && cb_host_functions_open());
    return waits && !cb_is_captured(stream) ? cuStreamSynchronize(stream) : CUDA_SUCCESS;
}

CUresult cb_copy_in(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream, bool async)
{
    if (!bytes) return cb_session_ready() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    if ((uintptr_t)src < 4096) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_stream_check(stream));
    if (!cb_range_is_here((uintptr_t)src)) return copy_within(dst, (uintptr_t)src, bytes, stream, async);
    if (async) {
        bool captured;
        CB_OK(pinned_is_captured(src, stream, &captured));
        if (captured) return copy_within(dst, (uintptr_t)src, bytes, stream, true);
        CB_OK(source_wait_ready(src, bytes, stream));
    }
    bool known = cb_range_is_device(dst, bytes) && (async || !cb_async_copies_open());
    for (size_t at = 0; at < bytes; at += CB_BULK_MAX) {
        struct cb_call call;
        size_t part = bytes - at < CB_BULK_MAX ? bytes - at : CB_BULK_MAX;
        CB_OK(copy_begin(&call, CB_OP_COPY_IN, dst + at, part, stream, async));
        if (known && (async || !cb_after_wait || at + part < bytes))
            CB_OK(cb_call_send_with(&call, (const char *)src + at, part));
        else
            CB_OK(cb_call_exchange(&call, (const char *)src + at, part, NULL, 0));
    }
    if (!async && cb_after_wait) cb_after_wait(CB_OP_cuCtxSynchronize);
    return CUDA_SUCCESS;
}

/* Data copied to pageable memory is there when the call returns, as with a driver. */
static bool may_copy_async(const void *dst, size_t bytes, CUstream stream)
{
    struct cb_range r;
    bool pinned = cb_range_of((uintptr_t)dst, &r) && cb_memory_is_host(r.memory);
    return cb_async_copy_fits(bytes) && (pinned || cb_is_captured(stream));
}

CUresult cb_copy_out(void *dst, CUdeviceptr src, size_t bytes, CUstream stream, bool async)
{
    struct cb_call call;
    if (!bytes) return cb_session_ready() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    if ((uintptr_t)dst < 4096) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_stream_check(stream));
    if (!cb_range_is_here((uintptr_t)dst)) return copy_within((uintptr_t)dst, src, bytes, stream, async);
    if (async) {
        bool captured;
        CB_OK(pinned_is_captured(dst, stream, &captured));
        if (captured) return copy_within((uintptr_t)dst, src, bytes, stream, true);
    }
    if (async && may_copy_async(dst, bytes, stream))
        return cb_async_copy(dst, src, bytes, stream, cb_range_is_device(src, bytes));
    CB_OK(copy_begin(&call, CB_OP_COPY_OUT, src, bytes, stream, async));
    return cb_call_exchange(&call, NULL, 0, dst, bytes);
}

/*
 * Copy between two addresses of any kind; a device address that is passed as such is not the program's own
 * memory.
 */
static CUresult copy_any(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream, bool async)
{
    bool to_here = cb_range_is_here(dst), from_here = cb_range_is_here(src);
    if (to_here && from_here) {
        if (!bytes) return cb_session_ready() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
        if (dst < 4096 || src < 4096) return CUDA_ERROR_INVALID_VALUE;
        CB_OK(cuStreamSynchronize(stream)); /* in stream order, and at once */
        memmove((void *)dst, (const void *)src, bytes);
        return CUDA_SUCCESS;
    }
    if (to_here) return cb_copy_out((void *)dst, src, bytes, stream, async);
    if (from_here) return cb_copy_in(dst, (const void *)src, bytes, stream, async);
    if (!bytes) return cb_session_ready() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    return copy_within(dst, src, bytes, stream, async);
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
    return cb_copy_in(dstDevice, srcHost, ByteCount, NULL, false);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                                     CUstream hStream)
{
    return cb_copy_in(dstDevice, srcHost, ByteCount, hStream, true);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    return cb_copy_out(dstHost, srcDevice, ByteCount, NULL, false);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    return cb_copy_out(dstHost, srcDevice, ByteCount, hStream, true);
}

/* One end may be pinned memory by its device address. */
static CUresult copy_between_devices(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream,
                                     bool async)
{
    struct cb_range r;
    bool to_here = cb_range_of(dst, &r) && cb_range_is_here(dst);
    bool from_here = cb_range_of(src, &r) && cb_range_is_here(src);
    if (to_here || from_here) return copy_any(dst, src, bytes, stream, async);
    if (!bytes) return cb_session_ready() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    return copy_within(dst, src, bytes, stream, async);
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    return copy_between_devices(dstDevice, srcDevice, ByteCount, NULL, false);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                     CUstream hStream)
{
    return copy_between_devices(dstDevice, srcDevice, ByteCount, hStream, true);
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    return copy_any(dst, src, ByteCount, hStream, true);
}

EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    return copy_any(dst, src, ByteCount, NULL, false);
}

EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                      CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
                                      CUstream hStream)
{
    if (!dsts || !srcs || !sizes || !count || !attrs || !attrsIdxs || !numAttrs || numAttrs > count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        CB_OK(copy_any(dsts[i], srcs[i], sizes[i], hStream, true));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                   CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
                                   size_t *failIdx, CUstream hStream)
{
    if (failIdx) *failIdx = SIZE_MAX;
    return cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, hStream);
}

/* ---- between contexts ---- */

static CUresult copy_peer(CUdeviceptr dst, CUcontext dstContext, CUdeviceptr src, CUcontext srcContext,
                          size_t bytes, CUstream stream, bool async)
{
    struct cb_call call;
    CB_OK(cb_call_begin(&call, CB_OP_COPY_PEER, CB_IN_CONTEXT));
    cb_put_word(&call, dst);
    cb_put_word(&call, bytes);
    cb_put_handle(&call, CB_KIND_STREAM, (uintptr_t)stream);
    cb_put_word(&call, async);
    cb_put_word(&call, src);
    cb_put_handle(&call, CB_KIND_CONTEXT, (uintptr_t)dstContext);
    cb_put_handle(&call, CB_KIND_CONTEXT, (uintptr_t)srcContext);
    return cb_copy_finish(&call, !cb_range_is_device(dst, bytes) || !cb_range_is_device(src, bytes), !async);
}

EXPORT CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                             CUcontext srcContext, size_t ByteCount)
{
    return copy_peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, NULL, false);
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                                  CUcontext srcContext, size_t ByteCount, CUstream hStream)
{
    return copy_peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream, true);
}
