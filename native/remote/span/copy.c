/*
 * Copies whose ends, or whose stream, belong to different servers. They pass through this process: the earlier
 * work of the stream is waited for, the bytes are fetched and sent, and the call returns when they are queued
 * in the order of both ends.
 */
#include "remote/span/route.h"

#define PART_BYTES (4u << 20)

static struct span_session *session_of_stream(CUstream stream)
{
    struct span_session *s = (uintptr_t)stream > 2 ? span_of_handle((uintptr_t)stream) : NULL;
    return s ? s : span_current();
}

static CUresult copy_to_program(void *to, CUdeviceptr from, size_t bytes)
{
    struct span_visit v;
    CB_OK(span_enter(&v, span_of_address(from), from));
    CUresult result = SPAN_CALL(v.session, cuMemcpyDtoH_v2)(to, from, bytes);
    span_leave(&v);
    return result;
}

static CUresult copy_from_program(CUdeviceptr to, const void *from, size_t bytes)
{
    struct span_visit v;
    CB_OK(span_enter(&v, span_of_address(to), to));
    CUresult result = SPAN_CALL(v.session, cuMemcpyHtoD_v2)(to, from, bytes);
    span_leave(&v);
    return result;
}

/*
 * A copy from ordinary memory may return before it is done; streams that do not wait for others must find the
 * data.
 */
static CUresult wait_until_arrived(CUdeviceptr to)
{
    struct span_visit v;
    CB_OK(span_enter(&v, span_of_address(to), to));
    CUresult result = SPAN_CALL(v.session, cuStreamSynchronize)(CU_STREAM_LEGACY);
    span_leave(&v);
    return result;
}

static CUresult copy_across(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    CUresult result = CUDA_SUCCESS;
    void *part = malloc(bytes < PART_BYTES ? bytes + 1 : PART_BYTES);
    if (!part) return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t at = 0; at < bytes && result == CUDA_SUCCESS; at += PART_BYTES) {
        size_t size = bytes - at < PART_BYTES ? bytes - at : PART_BYTES;
        result = copy_to_program(part, src + at, size);
        if (result == CUDA_SUCCESS) result = copy_from_program(dst + at, part, size);
    }
    free(part);
    return result == CUDA_SUCCESS ? wait_until_arrived(dst) : result;
}

/*
 * Copy within one session, which is not the stream's: the earlier work of the stream is done, and what follows
 * in it finds the copy done.
 */
static CUresult copy_within_session(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    struct span_visit v;
    CB_OK(span_enter(&v, span_of_address(dst), dst));
    CUresult result = SPAN_CALL(v.session, cuMemcpyDtoD_v2)(dst, src, bytes);
    span_leave(&v);
    return result == CUDA_SUCCESS ? wait_until_arrived(dst) : result;
}

/* NULL: the program's own memory. */
struct ends {
    struct span_session *to, *from;
};

static struct ends copy_ends(CUdeviceptr dst, CUdeviceptr src)
{
    return (struct ends){span_of_address(dst), span_of_address(src)};
}

static CUresult copy_any(const struct ends *e, CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    if (!e->to) return copy_to_program((void *)dst, src, bytes);
    if (!e->from) {
        CB_OK(copy_from_program(dst, (const void *)src, bytes));
        return wait_until_arrived(dst);
    }
    return e->to == e->from ? copy_within_session(dst, src, bytes) : copy_across(dst, src, bytes);
}

/* Return true if one session can do the whole copy. */
static bool single_session(const struct ends *e, const struct span_session *stream)
{
    const struct span_session *s = e->to ? e->to : e->from;
    return !s || ((!e->from || e->from == s) && (!stream || stream == s));
}

/* ---- in stream order ---- */

static CUresult copy_in_stream_order(const struct ends *e, CUdeviceptr dst, CUdeviceptr src, size_t bytes,
                                     CUstream stream)
{
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    CB_OK(cuStreamSynchronize(stream)); /* returns the error of a capture as well */
    return copy_any(e, dst, src, bytes);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                                     CUstream hStream)
{
    struct span_session *s = session_of_stream(hStream);
    struct ends e = {span_of_address(dstDevice), NULL};
    if (!span_ready || single_session(&e, s)) {
        if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
        return SPAN_CALL(s, cuMemcpyHtoDAsync_v2)(dstDevice, srcHost, ByteCount, hStream);
    }
    return copy_in_stream_order(&e, dstDevice, (uintptr_t)srcHost, ByteCount, hStream);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    struct span_session *s = session_of_stream(hStream);
    struct ends e = {NULL, span_of_address(srcDevice)};
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (single_session(&e, s))
        return SPAN_CALL(s, cuMemcpyDtoHAsync_v2)(dstHost, srcDevice, ByteCount, hStream);
    return copy_in_stream_order(&e, (uintptr_t)dstHost, srcDevice, ByteCount, hStream);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                     CUstream hStream)
{
    struct span_session *s = session_of_stream(hStream);
    struct ends e = copy_ends(dstDevice, srcDevice);
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (single_session(&e, s))
        return SPAN_CALL(s, cuMemcpyDtoDAsync_v2)(dstDevice, srcDevice, ByteCount, hStream);
    return copy_in_stream_order(&e, dstDevice, srcDevice, ByteCount, hStream);
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    struct span_session *s = session_of_stream(hStream);
    struct ends e = copy_ends(dst, src);
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (single_session(&e, s)) return SPAN_CALL(s, cuMemcpyAsync)(dst, src, ByteCount, hStream);
    return copy_in_stream_order(&e, dst, src, ByteCount, hStream);
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                                  CUcontext srcContext, size_t ByteCount, CUstream hStream)
{
    struct span_session *s = session_of_stream(hStream);
    struct ends e = {span_of_handle((uintptr_t)dstContext), span_of_handle((uintptr_t)srcContext)};
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!e.to || !e.from) return CUDA_ERROR_INVALID_CONTEXT;
    if (single_session(&e, s))
        return SPAN_CALL(s, cuMemcpyPeerAsync)(dstDevice, dstContext, srcDevice, srcContext, ByteCount,
                                               hStream);
    if (span_of_address(dstDevice) != e.to || span_of_address(srcDevice) != e.from)
        return CUDA_ERROR_INVALID_VALUE;
    return copy_in_stream_order(&e, dstDevice, srcDevice, ByteCount, hStream);
}

EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                      CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
                                      CUstream hStream)
{
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!dsts || !srcs || !sizes || !count || !attrs || !attrsIdxs || !numAttrs || numAttrs > count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        CB_OK(cuMemcpyAsync(dsts[i], srcs[i], sizes[i], hStream));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                   CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
                                   size_t *failIdx, CUstream hStream)
{
    if (failIdx) *failIdx = SIZE_MAX;
    return cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, hStream);
}

/* ---- synchronous ---- */

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    struct span_visit v;
    struct ends e = copy_ends(dstDevice, srcDevice);
    if (!single_session(&e, NULL)) return copy_across(dstDevice, srcDevice, ByteCount);
    CB_OK(span_enter(&v, e.to ? e.to : e.from, e.to ? dstDevice : srcDevice));
    CUresult result = SPAN_CALL(v.session, cuMemcpyDtoD_v2)(dstDevice, srcDevice, ByteCount);
    span_leave(&v);
    return result;
}

EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    struct span_visit v;
    struct ends e = copy_ends(dst, src);
    if (!single_session(&e, NULL)) return copy_across(dst, src, ByteCount);
    CB_OK(span_enter(&v, e.to ? e.to : e.from, e.to ? dst : src));
    CUresult result = SPAN_CALL(v.session, cuMemcpy)(dst, src, ByteCount);
    span_leave(&v);
    return result;
}

static CUresult context_wait(struct span_session *s, CUcontext context)
{
    CB_OK(SPAN_CALL(s, cuCtxPushCurrent_v2)(context));
    CUresult result = SPAN_CALL(s, cuCtxSynchronize)();
    SPAN_CALL(s, cuCtxPopCurrent_v2)(NULL);
    return result;
}

EXPORT CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                             CUcontext srcContext, size_t ByteCount)
{
    struct span_visit v;
    struct ends e = {span_of_handle((uintptr_t)dstContext), span_of_handle((uintptr_t)srcContext)};
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!e.to || !e.from) return CUDA_ERROR_INVALID_CONTEXT;
    if (e.to != e.from) { /* after all earlier work of both contexts */
        if (span_of_address(dstDevice) != e.to || span_of_address(srcDevice) != e.from)
            return CUDA_ERROR_INVALID_VALUE;
        CB_OK(context_wait(e.from, srcContext));
        CB_OK(context_wait(e.to, dstContext));
        return copy_across(dstDevice, srcDevice, ByteCount);
    }
    CB_OK(span_enter(&v, e.to, dstDevice));
    CUresult result = SPAN_CALL(e.to, cuMemcpyPeer)(dstDevice, dstContext, srcDevice, srcContext, ByteCount);
    span_leave(&v);
    return result;
}
