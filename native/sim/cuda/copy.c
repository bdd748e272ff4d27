/*
 * Copies and fills: 1D, 2D, 3D; synchronous and in streams. All become one form, a box of rows, whose effect
 * checks both sides against what the context may touch and moves the bytes.
 */
#include "sim/cuda/internal.h"

#define HEAVY_BYTES (256u << 10)

/* `depth` slices of `height` rows of `width` bytes, each side with its own pitches. */
struct side {
    uint64_t base;
    uint64_t pitch, slice;
};

struct box {
    struct side to, from;
    uint64_t width, height, depth;
};

static uint64_t extent(const struct box *b, const struct side *s)
{
    return (b->depth - 1) * s->slice + (b->height - 1) * s->pitch + b->width;
}

static CUresult copy_effect(struct context *c, void *argument)
{
    const struct box *b = argument;
    if (b->width == 0 || b->height == 0 || b->depth == 0) return CUDA_SUCCESS;
    if ((memory_is_ours(b->to.base) && !memory_allows(c, b->to.base, extent(b, &b->to))) ||
        (memory_is_ours(b->from.base) && !memory_allows(c, b->from.base, extent(b, &b->from))))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (uint64_t z = 0; z < b->depth; z++) {
        for (uint64_t y = 0; y < b->height; y++) {
            memmove((void *)(b->to.base + z * b->to.slice + y * b->to.pitch),
                    (const void *)(b->from.base + z * b->from.slice + y * b->from.pitch), b->width);
        }
    }
    return CUDA_SUCCESS;
}

static struct device *device_of(uint64_t address)
{
    memory_lock();
    const struct range *r = range_find(address);
    struct device *d = r ? r->device : NULL;
    memory_unlock();
    return d;
}

static uint64_t duration(struct context *c, uint64_t to, uint64_t from, uint64_t bytes)
{
    const struct sim_profile *p = &c->device->shared->profile;
    struct device *a = device_of(to), *b = device_of(from);
    uint64_t bandwidth = p->host_bandwidth_bps;
    if (a && a == b)
        bandwidth = p->memory_bandwidth_bps / 2; /* read and written */
    else if (a && b && p->peer_bandwidth_bps)
        bandwidth = p->peer_bandwidth_bps;
    return copy_duration(p, bytes, bandwidth);
}

static struct work copy_work(struct context *c, const struct box *b, uint64_t bytes)
{
    return (struct work){.kind = WORK_TIMED,
                         .engine = SIM_WORK_COPY,
                         .duration_ns = duration(c, b->to.base, b->from.base, bytes),
                         .heavy = bytes > HEAVY_BYTES,
                         .effect = copy_effect,
                         .argument = (void *)b,
                         .argument_bytes = sizeof *b};
}

static CUresult submit_box(CUstream hStream, const struct box *b, bool waits)
{
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    uint64_t bytes = b->width * b->height * b->depth;
    if (bytes == 0) return CUDA_SUCCESS;
    struct work w = copy_work(s->context, b, bytes);
    if (!waits && capture_work(s, NODE_MEMCPY, &w, NULL, 0, &result)) return result;
    if (waits && (result = capture_forbids()) != CUDA_SUCCESS) return result;
    return waits ? stream_submit_and_wait(s, &w) : stream_submit(s, &w);
}

static bool readable(uint64_t address, uint64_t bytes)
{
    /* Addresses of the program itself are its own affair, but the first page holds nothing on any machine. */
    return address >= 4096 && address + bytes >= address;
}

static CUresult linear(uint64_t to, uint64_t from, size_t bytes, CUstream hStream, bool waits)
{
    struct context *c;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    if (bytes == 0) return CUDA_SUCCESS;
    if (!readable(to, bytes) || !readable(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    struct box b = {.to = {.base = to}, .from = {.base = from}, .width = bytes, .height = 1, .depth = 1};
    return submit_box(hStream, &b, waits);
}

/* A device address named as such must be one of ours (or host memory the device may use): INVALID_VALUE at
 * the call, not a sticky error, as the driver does for an address it has never handed out. */
static CUresult on_device(uint64_t address, size_t bytes)
{
    struct context *c;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS || bytes == 0) return result;
    return memory_knows(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    return linear(dst, src, ByteCount, NULL, true);
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    return linear(dst, src, ByteCount, hStream, false);
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
    CUresult result = on_device(dstDevice, ByteCount);
    return result != CUDA_SUCCESS ? result : linear(dstDevice, (uint64_t)srcHost, ByteCount, NULL, true);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    CUresult result = on_device(srcDevice, ByteCount);
    return result != CUDA_SUCCESS ? result : linear((uint64_t)dstHost, srcDevice, ByteCount, NULL, true);
}

static CUresult device_to_device(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream hStream, bool waits)
{
    CUresult result = on_device(to, bytes);
    if (result == CUDA_SUCCESS) result = on_device(from, bytes);
    return result != CUDA_SUCCESS ? result : linear(to, from, bytes, hStream, waits);
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    return device_to_device(dstDevice, srcDevice, ByteCount, NULL, true);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                                     CUstream hStream)
{
    CUresult result = on_device(dstDevice, ByteCount);
    return result != CUDA_SUCCESS ? result : linear(dstDevice, (uint64_t)srcHost, ByteCount, hStream, false);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    CUresult result = on_device(srcDevice, ByteCount);
    return result != CUDA_SUCCESS ? result : linear((uint64_t)dstHost, srcDevice, ByteCount, hStream, false);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                     CUstream hStream)
{
    return device_to_device(dstDevice, srcDevice, ByteCount, hStream, false);
}

/* ---- between contexts: the copy is right whether or not peer access is enabled ---- */

static CUresult peer_effect(struct context *c, void *argument)
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

static CUresult peer(CUdeviceptr to, CUcontext toContext, CUdeviceptr from, CUcontext fromContext,
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
                     .duration_ns = duration(s->context, to, from, bytes),
                     .heavy = bytes > HEAVY_BYTES,
                     .effect = peer_effect,
                     .argument = &b,
                     .argument_bytes = sizeof b};
    if (!waits && capture_work(s, NODE_MEMCPY, &w, NULL, 0, &result)) return result;
    return waits ? stream_submit_and_wait(s, &w) : stream_submit(s, &w);
}

EXPORT CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                             CUcontext srcContext, size_t ByteCount)
{
    return peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, NULL, true);
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                                  CUcontext srcContext, size_t ByteCount, CUstream hStream)
{
    return peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream, false);
}

/* ---- 2D and 3D ---- */

struct end { /* one end of a described copy */
    CUmemorytype type;
    uint64_t host, device, pitch, height, x, y, z;
    CUarray array;
};

static CUresult resolve(const struct end *e, struct side *out)
{
    if (e->type == CU_MEMORYTYPE_ARRAY) {
        const struct array *a = object_get(e->array, KIND_ARRAY);
        if (!a) return CUDA_ERROR_INVALID_HANDLE;
        *out = (struct side){a->base + e->z * a->slice_bytes + e->y * a->row_bytes + e->x, a->row_bytes,
                             a->slice_bytes};
        return CUDA_SUCCESS;
    }
    uint64_t base;
    if (e->type == CU_MEMORYTYPE_HOST)
        base = e->host;
    else if (e->type == CU_MEMORYTYPE_DEVICE || e->type == CU_MEMORYTYPE_UNIFIED)
        base = e->device;
    else
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t slice = e->pitch * e->height;
    base += e->z * slice + e->y * e->pitch + e->x;
    if (!readable(base, 1)) return CUDA_ERROR_INVALID_VALUE;
    *out = (struct side){base, e->pitch, slice};
    return CUDA_SUCCESS;
}

static CUresult make_box(const struct end *to, const struct end *from, size_t width, size_t height,
                         size_t depth, struct box *b)
{
    *b = (struct box){.width = width, .height = height, .depth = depth};
    if (width > 1ull << 46 || height > 1ull << 32 || depth > 1ull << 32) return CUDA_ERROR_INVALID_VALUE;
    if (width == 0 || height == 0 || depth == 0) return CUDA_SUCCESS;
    CUresult result = resolve(to, &b->to);
    if (result == CUDA_SUCCESS) result = resolve(from, &b->from);
    if (result != CUDA_SUCCESS) return result;
    if (height > 1 && ((b->to.pitch && b->to.pitch < width) || (b->from.pitch && b->from.pitch < width)))
        return CUDA_ERROR_INVALID_VALUE;
    if (!b->to.pitch) b->to.pitch = width; /* a pitch of 0 means rows without gaps */
    if (!b->from.pitch) b->from.pitch = width;
    if (!b->to.slice) b->to.slice = b->to.pitch * height;
    if (!b->from.slice) b->from.slice = b->from.pitch * height;
    return CUDA_SUCCESS;
}

static CUresult described(const struct end *to, const struct end *from, size_t width, size_t height,
                          size_t depth, CUstream hStream, bool waits)
{
    struct context *c;
    struct box b;
    CUresult result = context_enter(&c);
    if (result == CUDA_SUCCESS) result = make_box(to, from, width, height, depth, &b);
    return result != CUDA_SUCCESS ? result : submit_box(hStream, &b, waits);
}

static CUresult copy_2d(const CUDA_MEMCPY2D *p, CUstream hStream, bool waits)
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
    return described(&to, &from, p->WidthInBytes, p->Height, 1, hStream, waits);
}

EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_2d(pCopy, NULL, true);
}

EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_2d(pCopy, NULL, true);
}

EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream)
{
    return copy_2d(pCopy, hStream, false);
}

static void ends_of(const CUDA_MEMCPY3D *p, struct end *to, struct end *from)
{
    *to = (struct end){p->dstMemoryType, (uint64_t)p->dstHost, p->dstDevice, p->dstPitch,
                       p->dstHeight,     p->dstXInBytes,       p->dstY,      p->dstZ,
                       p->dstArray};
    *from = (struct end){p->srcMemoryType, (uint64_t)p->srcHost, p->srcDevice, p->srcPitch,
                         p->srcHeight,     p->srcXInBytes,       p->srcY,      p->srcZ,
                         p->srcArray};
}

static CUresult copy_3d(const CUDA_MEMCPY3D *p, CUstream hStream, bool waits)
{
    struct end to, from;
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    ends_of(p, &to, &from);
    return described(&to, &from, p->WidthInBytes, p->Height, p->Depth, hStream, waits);
}

_Static_assert(sizeof(struct box) <= COPY_BYTES, "room for every copy");

CUresult copy_prepare(struct context *c, const CUDA_MEMCPY3D *p, struct work *w, unsigned char *buffer)
{
    struct end to, from;
    ends_of(p, &to, &from);
    struct box *b = (struct box *)buffer;
    CUresult result = make_box(&to, &from, p->WidthInBytes, p->Height, p->Depth, b);
    if (result == CUDA_SUCCESS) *w = copy_work(c, b, b->width * b->height * b->depth);
    return result;
}

void copy_describe(const struct work *w, CUDA_MEMCPY3D *out)
{
    const struct box *b = w->argument;
    *out = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                           .srcDevice = b->from.base,
                           .srcPitch = b->from.pitch,
                           .srcHeight = b->from.pitch ? b->from.slice / b->from.pitch : 0,
                           .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                           .dstDevice = b->to.base,
                           .dstPitch = b->to.pitch,
                           .dstHeight = b->to.pitch ? b->to.slice / b->to.pitch : 0,
                           .WidthInBytes = b->width,
                           .Height = b->height,
                           .Depth = b->depth};
}

EXPORT CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy)
{
    return copy_3d(pCopy, NULL, true);
}

EXPORT CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream)
{
    return copy_3d(pCopy, hStream, false);
}

static CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER *p, CUstream hStream, bool waits)
{
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    struct end to = {p->dstMemoryType, (uint64_t)p->dstHost, p->dstDevice, p->dstPitch,
                     p->dstHeight,     p->dstXInBytes,       p->dstY,      p->dstZ,
                     p->dstArray};
    struct end from = {p->srcMemoryType, (uint64_t)p->srcHost, p->srcDevice, p->srcPitch,
                       p->srcHeight,     p->srcXInBytes,       p->srcY,      p->srcZ,
                       p->srcArray};
    return described(&to, &from, p->WidthInBytes, p->Height, p->Depth, hStream, waits);
}

EXPORT CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy)
{
    return copy_3d_peer(pCopy, NULL, true);
}

EXPORT CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream)
{
    return copy_3d_peer(pCopy, hStream, false);
}

/* ---- to and from arrays, in bytes from the start of a row-major array ---- */

static CUresult with_array(CUarray array, size_t offset, uint64_t other, size_t bytes, bool to_array,
                           CUstream hStream, bool waits)
{
    const struct array *a = object_get(array, KIND_ARRAY);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!a) return CUDA_ERROR_INVALID_HANDLE;
    if (offset > a->bytes || bytes > a->bytes - offset) return CUDA_ERROR_INVALID_VALUE;
    uint64_t at = a->base + offset;
    return to_array ? linear(at, other, bytes, hStream, waits) : linear(other, at, bytes, hStream, waits);
}

EXPORT CUresult cuMemcpyHtoA_v2(CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount)
{
    return with_array(dstArray, dstOffset, (uint64_t)srcHost, ByteCount, true, NULL, true);
}

EXPORT CUresult cuMemcpyAtoH_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
    return with_array(srcArray, srcOffset, (uint64_t)dstHost, ByteCount, false, NULL, true);
}

EXPORT CUresult cuMemcpyDtoA_v2(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount)
{
    return with_array(dstArray, dstOffset, srcDevice, ByteCount, true, NULL, true);
}

EXPORT CUresult cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
    return with_array(srcArray, srcOffset, dstDevice, ByteCount, false, NULL, true);
}

EXPORT CUresult cuMemcpyAtoA_v2(CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset,
                                size_t ByteCount)
{
    const struct array *a = object_get(srcArray, KIND_ARRAY);
    if (!a || srcOffset > a->bytes || ByteCount > a->bytes - srcOffset) return CUDA_ERROR_INVALID_HANDLE;
    return with_array(dstArray, dstOffset, a->base + srcOffset, ByteCount, true, NULL, true);
}

EXPORT CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void *srcHost,
                                     size_t ByteCount, CUstream hStream)
{
    return with_array(dstArray, dstOffset, (uint64_t)srcHost, ByteCount, true, hStream, false);
}

EXPORT CUresult cuMemcpyAtoHAsync_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
                                     CUstream hStream)
{
    return with_array(srcArray, srcOffset, (uint64_t)dstHost, ByteCount, false, hStream, false);
}
