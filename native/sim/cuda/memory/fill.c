/*
 * Fills of device memory by elements of 1, 2 or 4 bytes, and prefetches of managed memory.
 */
#include "sim/cuda/memory/fill.h"

#include "sim/cuda/graph/capture.h"
#include "sim/cuda/graph/capture_nodes.h"
#include "sim/cuda/graph/graph.h"
#include "sim/cuda/launch/kernel_registry.h"
#include "sim/cuda/memory/copy.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/stream.h"
#include "sim/cuda/stream/stream_work.h"

struct fill {
    uint64_t base, pitch, width, height; /* width in elements */
    uint32_t value, element;
};

static CUresult fill_effect(struct context *c, void *argument)
{
    const struct fill *f = argument;
    uint64_t row = f->width * f->element;
    if (!memory_allows(c, f->base, (f->height - 1) * f->pitch + row)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (uint64_t y = 0; y < f->height; y++) {
        void *p = (void *)(f->base + y * f->pitch);
        if (f->element == 1) {
            memset(p, (int)f->value, row);
        } else if (f->element == 2) {
            for (uint64_t x = 0; x < f->width; x++)
                ((uint16_t *)p)[x] = (uint16_t)f->value;
        } else {
            for (uint64_t x = 0; x < f->width; x++)
                ((uint32_t *)p)[x] = f->value;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult fill_work(struct context *c, struct fill *f, struct work *w)
{
    if (f->width > 1ull << 46 || f->height > 1ull << 32 || f->base % f->element)
        return CUDA_ERROR_INVALID_VALUE;
    if (f->height > 1 && f->pitch < f->width * f->element) return CUDA_ERROR_INVALID_VALUE;
    const struct sim_profile *p = c->device->profile;
    uint64_t bytes = f->width * f->element * f->height;
    *w = (struct work){.kind = WORK_TIMED,
                       .engine = SIM_WORK_COPY,
                       .duration_ns = copy_duration(p, bytes, p->memory_bandwidth_bps),
                       .heavy = bytes > COPY_HEAVY_BYTES,
                       .effect = fill_effect,
                       .argument = f,
                       .argument_bytes = sizeof *f};
    w->touches = memory_touch(c, f->base, bytes, w->touch, 0);
    return CUDA_SUCCESS;
}

static CUresult fill_submit(CUdeviceptr base, size_t pitch, uint32_t value, uint32_t element, size_t width,
                            size_t height, CUstream hStream, bool waits)
{
    struct stream *s;
    struct work w;
    struct fill f = {base, pitch, width, height, value, element};
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (width == 0 || height == 0) return CUDA_SUCCESS;
    if (!memory_knows(base)) return CUDA_ERROR_INVALID_VALUE;
    result = fill_work(s->context, &f, &w);
    if (result != CUDA_SUCCESS) return result;
    if (!waits && capture_work(s, NODE_MEMSET, &w, NULL, 0, &result)) return result;
    if (waits && (result = capture_forbids()) != CUDA_SUCCESS) return result;
    return waits ? stream_submit_and_wait(s, &w) : stream_submit(s, &w);
}

_Static_assert(sizeof(struct fill) <= COPY_BYTES, "room for every fill");

CUresult fill_prepare(struct context *c, const CUDA_MEMSET_NODE_PARAMS *p, struct work *w,
                      unsigned char *buffer)
{
    struct fill *f = (struct fill *)buffer;
    if ((p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4) || !p->width || !p->height)
        return CUDA_ERROR_INVALID_VALUE;
    *f = (struct fill){p->dst, p->pitch, p->width, p->height, p->value, p->elementSize};
    return fill_work(c, f, w);
}

void fill_describe(const struct work *w, CUDA_MEMSET_NODE_PARAMS *out)
{
    const struct fill *f = w->argument;
    *out = (CUDA_MEMSET_NODE_PARAMS){f->base, f->pitch, f->value, f->element, f->width, f->height};
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N)
{
    return fill_submit(dstDevice, 0, uc, 1, N, 1, NULL, true);
}

EXPORT CUresult cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N)
{
    return fill_submit(dstDevice, 0, us, 2, N, 1, NULL, true);
}

EXPORT CUresult cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N)
{
    return fill_submit(dstDevice, 0, ui, 4, N, 1, NULL, true);
}

EXPORT CUresult cuMemsetD2D8_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                                size_t Height)
{
    return fill_submit(dstDevice, dstPitch, uc, 1, Width, Height, NULL, true);
}

EXPORT CUresult cuMemsetD2D16_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                                 size_t Height)
{
    return fill_submit(dstDevice, dstPitch, us, 2, Width, Height, NULL, true);
}

EXPORT CUresult cuMemsetD2D32_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                                 size_t Height)
{
    return fill_submit(dstDevice, dstPitch, ui, 4, Width, Height, NULL, true);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream)
{
    return fill_submit(dstDevice, 0, uc, 1, N, 1, hStream, false);
}

EXPORT CUresult cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream)
{
    return fill_submit(dstDevice, 0, us, 2, N, 1, hStream, false);
}

EXPORT CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream)
{
    return fill_submit(dstDevice, 0, ui, 4, N, 1, hStream, false);
}

EXPORT CUresult cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                                  size_t Height, CUstream hStream)
{
    return fill_submit(dstDevice, dstPitch, uc, 1, Width, Height, hStream, false);
}

EXPORT CUresult cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                                   size_t Height, CUstream hStream)
{
    return fill_submit(dstDevice, dstPitch, us, 2, Width, Height, hStream, false);
}

EXPORT CUresult cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                                   size_t Height, CUstream hStream)
{
    return fill_submit(dstDevice, dstPitch, ui, 4, Width, Height, hStream, false);
}

static CUresult prefetch_submit(CUdeviceptr devPtr, size_t count, bool to_host, CUstream hStream)
{
    STREAM_OR_RETURN(s, hStream);
    if (!count || !memory_allows(s->context, devPtr, count)) return CUDA_ERROR_INVALID_VALUE;
    struct work w = {.kind = WORK_TIMED, .engine = SIM_WORK_COPY};
    w.touches = memory_touch(s->context, devPtr, count, w.touch, 0);
    if (!w.touches || s->capture) return CUDA_SUCCESS;
    w.touch[0].to_host = to_host;
    return stream_submit(s, &w);
}

EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream)
{
    if (dstDevice != CU_DEVICE_CPU && !device_get(dstDevice)) return CUDA_ERROR_INVALID_DEVICE;
    return prefetch_submit(devPtr, count, dstDevice == CU_DEVICE_CPU, hStream);
}

EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location,
                                      unsigned int flags, CUstream hStream)
{
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    return prefetch_submit(devPtr, count, location.type != CU_MEM_LOCATION_TYPE_DEVICE, hStream);
}
