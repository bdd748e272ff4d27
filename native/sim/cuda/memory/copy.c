/*
 * Copies: 1D, 2D, 3D; synchronous and in streams. All are converted to one form, a box of rows, whose effect
 * checks that the context may access both sides and moves the bytes.
 */
#include "sim/cuda/memory/copy.h"

#include "sim/cuda/graph/capture.h"
#include "sim/cuda/graph/capture_nodes.h"
#include "sim/cuda/graph/graph.h"
#include "sim/cuda/launch/kernel_registry.h"
#include "sim/cuda/memory/address_space.h"
#include "sim/cuda/memory/array.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/stream/stream.h"
#include "sim/cuda/stream/stream_work.h"

static uint64_t side_bytes(const struct box *b, const struct side *s)
{
    return (b->depth - 1) * s->slice + (b->height - 1) * s->pitch + b->width;
}

static CUresult copy_effect(struct context *c, void *argument)
{
    const struct box *b = argument;
    if (b->width == 0 || b->height == 0 || b->depth == 0) return CUDA_SUCCESS;
    if ((memory_is_ours(b->to.base) && !memory_allows(c, b->to.base, side_bytes(b, &b->to))) ||
        (memory_is_ours(b->from.base) && !memory_allows(c, b->from.base, side_bytes(b, &b->from))))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (uint64_t z = 0; z < b->depth; z++) {
        for (uint64_t y = 0; y < b->height; y++) {
            memmove((void *)(b->to.base + z * b->to.slice + y * b->to.pitch),
                    (const void *)(b->from.base + z * b->from.slice + y * b->from.pitch), b->width);
        }
    }
    return CUDA_SUCCESS;
}

static struct device *device_of_address(uint64_t address)
{
    memory_lock();
    const struct range *r = range_find(address);
    struct device *d = r ? r->device : NULL;
    memory_unlock();
    return d;
}

uint64_t copy_time(struct context *c, uint64_t to, uint64_t from, uint64_t bytes)
{
    const struct sim_profile *p = c->device->profile;
    struct device *a = device_of_address(to), *b = device_of_address(from);
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
                         .duration_ns = copy_time(c, b->to.base, b->from.base, bytes),
                         .heavy = bytes > COPY_HEAVY_BYTES,
                         .effect = copy_effect,
                         .argument = (void *)b,
                         .argument_bytes = sizeof *b};
}

CUresult copy_submit(CUstream hStream, const struct box *b, bool waits)
{
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    uint64_t bytes = b->width * b->height * b->depth;
    if (bytes == 0) return CUDA_SUCCESS;
    struct work w = copy_work(s->context, b, bytes);
    if (memory_is_tracked() && !memory_is_ours(b->from.base)) memory_written(s->context, b->to.base, bytes);
    if (!waits && capture_work(s, NODE_MEMCPY, &w, NULL, 0, &result)) return result;
    if (waits && (result = capture_forbids()) != CUDA_SUCCESS) return result;
    return waits ? stream_submit_and_wait(s, &w) : stream_submit(s, &w);
}

bool copy_readable(uint64_t address, uint64_t bytes)
{
    /* Addresses of the program itself are not checked, except that the first page is never mapped. */
    return address >= 4096 && address + bytes >= address;
}

static CUresult end_resolve(const struct end *e, struct side *out)
{
    if (e->type == CU_MEMORYTYPE_ARRAY) {
        const struct array *a = object_get(e->array, KIND_ARRAY);
        if (!a) return CUDA_ERROR_INVALID_HANDLE;
        *out = (struct side){a->base + e->z * a->slice_bytes + e->y * a->row_bytes + e->x, a->row_bytes,
                             a->slice_bytes};
        return memory_is_ours(out->base) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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
    if (!copy_readable(base, 1)) return CUDA_ERROR_INVALID_VALUE;
    if (e->type == CU_MEMORYTYPE_DEVICE && !memory_is_ours(base)) return CUDA_ERROR_INVALID_VALUE;
    *out = (struct side){base, e->pitch, slice};
    return CUDA_SUCCESS;
}

CUresult copy_box(const struct end *to, const struct end *from, size_t width, size_t height, size_t depth,
                  struct box *b)
{
    *b = (struct box){.width = width, .height = height, .depth = depth};
    if (width > 1ull << 46 || height > 1ull << 32 || depth > 1ull << 32) return CUDA_ERROR_INVALID_VALUE;
    if (width == 0 || height == 0 || depth == 0) return CUDA_SUCCESS;
    CUresult result = end_resolve(to, &b->to);
    if (result == CUDA_SUCCESS) result = end_resolve(from, &b->from);
    if (result != CUDA_SUCCESS) return result;
    if (height > 1 && ((b->to.pitch && b->to.pitch < width) || (b->from.pitch && b->from.pitch < width)))
        return CUDA_ERROR_INVALID_VALUE;
    if (!b->to.pitch) b->to.pitch = width; /* a pitch of 0 means rows without gaps */
    if (!b->from.pitch) b->from.pitch = width;
    if (!b->to.slice) b->to.slice = b->to.pitch * height;
    if (!b->from.slice) b->from.slice = b->from.pitch * height;
    return CUDA_SUCCESS;
}

void copy_ends(const CUDA_MEMCPY3D *p, struct end *to, struct end *from)
{
    *to = (struct end){p->dstMemoryType, (uint64_t)p->dstHost, p->dstDevice, p->dstPitch,
                       p->dstHeight,     p->dstXInBytes,       p->dstY,      p->dstZ,
                       p->dstArray};
    *from = (struct end){p->srcMemoryType, (uint64_t)p->srcHost, p->srcDevice, p->srcPitch,
                         p->srcHeight,     p->srcXInBytes,       p->srcY,      p->srcZ,
                         p->srcArray};
}

_Static_assert(sizeof(struct box) <= COPY_BYTES, "room for every copy");

CUresult copy_prepare(struct context *c, const CUDA_MEMCPY3D *p, struct work *w, unsigned char *buffer)
{
    struct end to, from;
    copy_ends(p, &to, &from);
    struct box *b = (struct box *)buffer;
    CUresult result = copy_box(&to, &from, p->WidthInBytes, p->Height, p->Depth, b);
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
