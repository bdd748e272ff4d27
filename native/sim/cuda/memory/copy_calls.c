/* Driver calls that copy: 1D, 2D, 3D, between contexts, to and from arrays. */
#include "sim/cuda/context/context.h"
#include "sim/cuda/graph/capture_nodes.h"
#include "sim/cuda/graph/graph.h"
#include "sim/cuda/memory/address_space.h"
#include "sim/cuda/memory/array.h"
#include "sim/cuda/memory/copy.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/stream.h"
#include "sim/cuda/stream/stream_work.h"

static CUresult copy_linear(uint64_t to, uint64_t from, size_t bytes, CUstream hStream, bool waits)
{
    CONTEXT_OR_RETURN(c);
    if (bytes == 0) return CUDA_SUCCESS;
    if (!copy_readable(to, bytes) || !copy_readable(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    struct box b = {.to = {.base = to}, .from = {.base = from}, .width = bytes, .height = 1, .depth = 1};
    return copy_submit(hStream, &b, waits);
}

/*
 * Check a device address that is passed as such: it must be one of ours (or host memory that the device may
 * use). The error is INVALID_VALUE at the call, not a sticky error, as from the driver for an address that it
 * has never returned.
 */
static CUresult device_address_check(uint64_t address, size_t bytes)
{
    struct context *c;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS || bytes == 0) return result;
    return memory_knows(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    return copy_linear(dst, src, ByteCount, NULL, true);
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    return copy_linear(dst, src, ByteCount, hStream, false);
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
    CUresult result = device_address_check(dstDevice, ByteCount);
    return result != CUDA_SUCCESS ? result : copy_linear(dstDevice, (uint64_t)srcHost, ByteCount, NULL, true);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    CUresult result = device_address_check(srcDevice, ByteCount);
    return result != CUDA_SUCCESS ? result : copy_linear((uint64_t)dstHost, srcDevice, ByteCount, NULL, true);
}

static CUresult copy_device_to_device(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream hStream,
                                      bool waits)
{
    CUresult result = device_address_check(to, bytes);
    if (result == CUDA_SUCCESS) result = device_address_check(from, bytes);
    return result != CUDA_SUCCESS ? result : copy_linear(to, from, bytes, hStream, waits);
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    return copy_device_to_device(dstDevice, srcDevice, ByteCount, NULL, true);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                                     CUstream hStream)
{
    CUresult result = device_address_check(dstDevice, ByteCount);
    return result != CUDA_SUCCESS ? result
                                  : copy_linear(dstDevice, (uint64_t)srcHost, ByteCount, hStream, false);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    CUresult result = device_address_check(srcDevice, ByteCount);
    return result != CUDA_SUCCESS ? result
                                  : copy_linear((uint64_t)dstHost, srcDevice, ByteCount, hStream, false);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                     CUstream hStream)
{
    return copy_device_to_device(dstDevice, srcDevice, ByteCount, hStream, false);
}

/* ---- between contexts: the copy works whether or not peer access is enabled ---- */

static CUresult peer_copy_effect(struct context *c, void *argument)
{
    const struct box *b = argument;
    (void)c;
    struct range *a, *z;
    memory_lock();
    a = range_find(b->to.base);
    z = range_find(b->from.base);
    bool ok =
        a && z && b->to.base + b->width <= a->base + a->size && b->from.base + b->width <= z->base + z->size;
    memory_unlock();
    if (!ok) return CUDA_ERROR_ILLEGAL_ADDRESS;
    memmove((void *)b->to.base, (const void *)b->from.base, b->width);
    return CUDA_SUCCESS;
}

static CUresult copy_peer(CUdeviceptr to, CUcontext toContext, CUdeviceptr from, CUcontext fromContext,
                          size_t bytes, CUstream hStream, bool waits)
{
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (!object_get(toContext, KIND_CONTEXT) || !object_get(fromContext, KIND_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (bytes == 0) return CUDA_SUCCESS;
    if (!memory_is_ours(to) || !memory_is_ours(from)) return CUDA_ERROR_INVALID_VALUE;
    struct box b = {.to = {.base = to}, .from = {.base = from}, .width = bytes, .height = 1, .depth = 1};
    struct work w = {.kind = WORK_TIMED,
                     .engine = SIM_WORK_COPY,
                     .duration_ns = copy_time(s->context, to, from, bytes),
                     .heavy = bytes > COPY_HEAVY_BYTES,
                     .effect = peer_copy_effect,
                     .argument = &b,
                     .argument_bytes = sizeof b};
    if (!waits && capture_work(s, NODE_MEMCPY, &w, NULL, 0, &result)) return result;
    return waits ? stream_submit_and_wait(s, &w) : stream_submit(s, &w);
}

EXPORT CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                             CUcontext srcContext, size_t ByteCount)
{
    return copy_peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, NULL, true);
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                                  CUcontext srcContext, size_t ByteCount, CUstream hStream)
{
    return copy_peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream, false);
}

/* ---- 2D and 3D ---- */

static CUresult copy_described(const struct end *to, const struct end *from, size_t width, size_t height,
                               size_t depth, CUstream hStream, bool waits)
{
    struct context *c;
    struct box b;
    CUresult result = context_enter(&c);
    if (result == CUDA_SUCCESS) result = copy_box(to, from, width, height, depth, &b);
    return result != CUDA_SUCCESS ? result : copy_submit(hStream, &b, waits);
}

static CUresult copy_box_2d(const CUDA_MEMCPY2D *p, CUstream hStream, bool waits)
{
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    struct end to = {.type = p->dstMemoryType,
                     .host = (uint64_t)p->dstHost,
                     .device = p->dstDevice,
                     .pitch = p->dstPitch,
                     .height = p->Height,
                     .x = p->dstXInBytes,
                     .y = p->dstY,
                     .array = p->dstArray};
    struct end from = {.type = p->srcMemoryType,
                       .host = (uint64_t)p->srcHost,
                       .device = p->srcDevice,
                       .pitch = p->srcPitch,
                       .height = p->Height,
                       .x = p->srcXInBytes,
                       .y = p->srcY,
                       .array = p->srcArray};
    return copy_described(&to, &from, p->WidthInBytes, p->Height, 1, hStream, waits);
}

EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_box_2d(pCopy, NULL, true);
}

EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_box_2d(pCopy, NULL, true);
}

EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream)
{
    return copy_box_2d(pCopy, hStream, false);
}

static CUresult copy_box_3d(const CUDA_MEMCPY3D *p, CUstream hStream, bool waits)
{
    struct end to, from;
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    copy_ends(p, &to, &from);
    return copy_described(&to, &from, p->WidthInBytes, p->Height, p->Depth, hStream, waits);
}

EXPORT CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy)
{
    return copy_box_3d(pCopy, NULL, true);
}

EXPORT CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream)
{
    return copy_box_3d(pCopy, hStream, false);
}

static CUresult copy_box_3d_peer(const CUDA_MEMCPY3D_PEER *p, CUstream hStream, bool waits)
{
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    struct end to = {p->dstMemoryType, (uint64_t)p->dstHost, p->dstDevice, p->dstPitch,
                     p->dstHeight,     p->dstXInBytes,       p->dstY,      p->dstZ,
                     p->dstArray};
    struct end from = {p->srcMemoryType, (uint64_t)p->srcHost, p->srcDevice, p->srcPitch,
                       p->srcHeight,     p->srcXInBytes,       p->srcY,      p->srcZ,
                       p->srcArray};
    return copy_described(&to, &from, p->WidthInBytes, p->Height, p->Depth, hStream, waits);
}

EXPORT CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy)
{
    return copy_box_3d_peer(pCopy, NULL, true);
}

EXPORT CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream)
{
    return copy_box_3d_peer(pCopy, hStream, false);
}

/* ---- to and from arrays, in bytes from the start of a row-major array ---- */

static CUresult copy_with_array(CUarray array, size_t offset, uint64_t other, size_t bytes, bool to_array,
                                CUstream hStream, bool waits)
{
    const struct array *a = object_get(array, KIND_ARRAY);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!a) return CUDA_ERROR_INVALID_HANDLE;
    if (offset > a->bytes || bytes > a->bytes - offset) return CUDA_ERROR_INVALID_VALUE;
    uint64_t at = a->base + offset;
    return to_array ? copy_linear(at, other, bytes, hStream, waits)
                    : copy_linear(other, at, bytes, hStream, waits);
}

EXPORT CUresult cuMemcpyHtoA_v2(CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount)
{
    return copy_with_array(dstArray, dstOffset, (uint64_t)srcHost, ByteCount, true, NULL, true);
}

EXPORT CUresult cuMemcpyAtoH_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
    return copy_with_array(srcArray, srcOffset, (uint64_t)dstHost, ByteCount, false, NULL, true);
}

EXPORT CUresult cuMemcpyDtoA_v2(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount)
{
    return copy_with_array(dstArray, dstOffset, srcDevice, ByteCount, true, NULL, true);
}

EXPORT CUresult cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
    return copy_with_array(srcArray, srcOffset, dstDevice, ByteCount, false, NULL, true);
}

EXPORT CUresult cuMemcpyAtoA_v2(CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset,
                                size_t ByteCount)
{
    const struct array *a = object_get(srcArray, KIND_ARRAY);
    if (!a || srcOffset > a->bytes || ByteCount > a->bytes - srcOffset) return CUDA_ERROR_INVALID_HANDLE;
    return copy_with_array(dstArray, dstOffset, a->base + srcOffset, ByteCount, true, NULL, true);
}

EXPORT CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void *srcHost,
                                     size_t ByteCount, CUstream hStream)
{
    return copy_with_array(dstArray, dstOffset, (uint64_t)srcHost, ByteCount, true, hStream, false);
}

EXPORT CUresult cuMemcpyAtoHAsync_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
                                     CUstream hStream)
{
    return copy_with_array(srcArray, srcOffset, (uint64_t)dstHost, ByteCount, false, hStream, false);
}
