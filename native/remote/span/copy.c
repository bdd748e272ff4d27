/*
 * Copies whose ends, or whose stream, are of different servers. They go through this process: what the stream has to do
 * before is waited for, the bytes come and go, and the call returns when they are on their way in the order of both ends.
 */
#include "remote/span/route.h"

#define PART_BYTES (4u << 20)

static struct span_session *of_stream(CUstream stream)
{
    struct span_session *s = (uintptr_t)stream > 2 ? span_of_handle((uintptr_t)stream) : NULL;
    return s ? s : span_current();
}

static CUresult bring(void *to, CUdeviceptr from, size_t bytes)
{
    struct span_visit v;
    CB_OK(span_enter(&v, span_of_address(from), from));
    CUresult result = SPAN_CALL(v.session, cuMemcpyDtoH_v2)(to, from, bytes);
    span_leave(&v);
    return result;
}

static CUresult give(CUdeviceptr to, const void *from, size_t bytes)
{
    struct span_visit v;
    CB_OK(span_enter(&v, span_of_address(to), to));
    CUresult result = SPAN_CALL(v.session, cuMemcpyHtoD_v2)(to, from, bytes);
    span_leave(&v);
    return result;
}

/* A copy out of ordinary memory may return before it is at its end; streams that wait for no others are to find it there. */
static CUresult arrived(CUdeviceptr to)
{
    struct span_visit v;
    CB_OK(span_enter(&v, span_of_address(to), to));
    CUresult result = SPAN_CALL(v.session, cuStreamSynchronize)(CU_STREAM_LEGACY);
    span_leave(&v);
    return result;
}

static CUresult across(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    CUresult result = CUDA_SUCCESS;
    void *part = malloc(bytes < PART_BYTES ? bytes + 1 : PART_BYTES);
    if (!part) return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t at = 0; at < bytes && result == CUDA_SUCCESS; at += PART_BYTES) {
        size_t size = bytes - at < PART_BYTES ? bytes - at : PART_BYTES;
        result = bring(part, src + at, size);
        if (result == CUDA_SUCCESS) result = give(dst + at, part, size);
    }
    free(part);
    return result == CUDA_SUCCESS ? arrived(dst) : result;
}

/* Within one session, but not that of the stream: the stream's turn has come, and what follows there finds it done. */
static CUresult within(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    struct span_visit v;
    CB_OK(span_enter(&v, span_of_address(dst), dst));
    CUresult result = SPAN_CALL(v.session, cuMemcpyDtoD_v2)(dst, src, bytes);
    span_leave(&v);
    return result == CUDA_SUCCESS ? arrived(dst) : result;
}

/* NULL: the memory is the program's own. */
struct ends {
    struct span_session *to, *from;
};

static struct ends ends_of(CUdeviceptr dst, CUdeviceptr src)
{
    return (struct ends){span_of_address(dst), span_of_address(src)};
}

static CUresult anywhere(const struct ends *e, CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    if (!e->to) return bring((void *)dst, src, bytes);
    if (!e->from) {
        CB_OK(give(dst, (const void *)src, bytes));
        return arrived(dst);
    }
    return e->to == e->from ? within(dst, src, bytes) : across(dst, src, bytes);
}

/* Whether one session can do all of it. */
static bool is_one(const struct ends *e, const struct span_session *stream)
{
    const struct span_session *s = e->to ? e->to : e->from;
    return !s || ((!e->from || e->from == s) && (!stream || stream == s));
}

/* ---- in the order of a stream ---- */

static CUresult async(const struct ends *e, CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    CB_OK(cuStreamSynchronize(stream)); /* says so when it is captured, too */
    return anywhere(e, dst, src, bytes);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                                     CUstream hStream)
{
    struct span_session *s = of_stream(hStream);
    struct ends e = {span_of_address(dstDevice), NULL};
    if (!span_ready || is_one(&e, s)) {
        if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
        return SPAN_CALL(s, cuMemcpyHtoDAsync_v2)(dstDevice, srcHost, ByteCount, hStream);
    }
    return async(&e, dstDevice, (uintptr_t)srcHost, ByteCount, hStream);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    struct span_session *s = of_stream(hStream);
    struct ends e = {NULL, span_of_address(srcDevice)};
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (is_one(&e, s)) return SPAN_CALL(s, cuMemcpyDtoHAsync_v2)(dstHost, srcDevice, ByteCount, hStream);
    return async(&e, (uintptr_t)dstHost, srcDevice, ByteCount, hStream);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                     CUstream hStream)
{
    struct span_session *s = of_stream(hStream);
    struct ends e = ends_of(dstDevice, srcDevice);
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (is_one(&e, s)) return SPAN_CALL(s, cuMemcpyDtoDAsync_v2)(dstDevice, srcDevice, ByteCount, hStream);
    return async(&e, dstDevice, srcDevice, ByteCount, hStream);
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    struct span_session *s = of_stream(hStream);
    struct ends e = ends_of(dst, src);
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (is_one(&e, s)) return SPAN_CALL(s, cuMemcpyAsync)(dst, src, ByteCount, hStream);
    return async(&e, dst, src, ByteCount, hStream);
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                                  CUcontext srcContext, size_t ByteCount, CUstream hStream)
{
    struct span_session *s = of_stream(hStream);
    struct ends e = {span_of_handle((uintptr_t)dstContext), span_of_handle((uintptr_t)srcContext)};
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!e.to || !e.from) return CUDA_ERROR_INVALID_CONTEXT;
    if (is_one(&e, s))
        return SPAN_CALL(s, cuMemcpyPeerAsync)(dstDevice, dstContext, srcDevice, srcContext, ByteCount,
                                               hStream);
    if (span_of_address(dstDevice) != e.to || span_of_address(srcDevice) != e.from)
        return CUDA_ERROR_INVALID_VALUE;
    return async(&e, dstDevice, srcDevice, ByteCount, hStream);
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

/* ---- waited for ---- */

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    struct span_visit v;
    struct ends e = ends_of(dstDevice, srcDevice);
    if (!is_one(&e, NULL)) return across(dstDevice, srcDevice, ByteCount);
    CB_OK(span_enter(&v, e.to ? e.to : e.from, e.to ? dstDevice : srcDevice));
    CUresult result = SPAN_CALL(v.session, cuMemcpyDtoD_v2)(dstDevice, srcDevice, ByteCount);
    span_leave(&v);
    return result;
}

EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    struct span_visit v;
    struct ends e = ends_of(dst, src);
    if (!is_one(&e, NULL)) return across(dst, src, ByteCount);
    CB_OK(span_enter(&v, e.to ? e.to : e.from, e.to ? dst : src));
    CUresult result = SPAN_CALL(v.session, cuMemcpy)(dst, src, ByteCount);
    span_leave(&v);
    return result;
}

static CUresult finish(struct span_session *s, CUcontext context)
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
    if (e.to != e.from) { /* after everything that both contexts have to do */
        if (span_of_address(dstDevice) != e.to || span_of_address(srcDevice) != e.from)
            return CUDA_ERROR_INVALID_VALUE;
        CB_OK(finish(e.from, srcContext));
        CB_OK(finish(e.to, dstContext));
        return across(dstDevice, srcDevice, ByteCount);
    }
    CB_OK(span_enter(&v, e.to, dstDevice));
    CUresult result = SPAN_CALL(e.to, cuMemcpyPeer)(dstDevice, dstContext, srcDevice, srcContext, ByteCount);
    span_leave(&v);
    return result;
}
