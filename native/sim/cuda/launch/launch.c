/* Driver calls that launch kernels and host functions, and that wait for and write values in memory. */
#include "sim/cuda/launch/launch.h"

#include "sim/cuda/graph/capture_nodes.h"
#include "sim/cuda/graph/graph.h"
#include "sim/cuda/launch/kernel_ptx.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/module/module.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/stream.h"
#include "sim/cuda/stream/stream_work.h"

#include <stdio.h>

#define PARAMETER_BYTES 4096
#define HEAVY_BYTES     (256u << 10)
#define HEAVY_FLOPS     (1u << 20)

struct launch_argument { /* the argument of a kernel's effect; parameters follow */
    const struct kernel *kernel;
    unsigned int grid[3], block[3];
    unsigned char parameters[];
};

_Static_assert(sizeof(struct launch_argument) + PARAMETER_BYTES <= LAUNCH_BYTES, "room for every launch");

static CUresult launch_effect(struct context *c, void *argument)
{
    const struct launch_argument *l = argument;
    struct kernel_call call = {.grid = {l->grid[0], l->grid[1], l->grid[2]},
                               .block = {l->block[0], l->block[1], l->block[2]},
                               .parameters = l->parameters};
    return l->kernel->run(c, &call);
}

void launch_parameters(const struct work *w, void **out)
{
    struct launch_argument *l = w->argument;
    struct parameter parameter[PARAMETERS_MAX];
    if (kernel_ptx_is(w)) {
        kernel_ptx_parameters(w, out);
        return;
    }
    uint32_t bytes, count = kernel_parameters(l->kernel, parameter, &bytes);
    for (uint32_t i = 0; i < count; i++)
        out[i] = l->parameters + parameter[i].offset;
}

/* Collect the parameters into `out` (PARAMETER_BYTES) from either form. */
static CUresult parameters_pack(const struct function *f, void **kernelParams, void **extra,
                                unsigned char *out, uint32_t *bytes)
{
    struct parameter parameter[PARAMETERS_MAX];
    uint32_t count = 0;
    *bytes = 0;
    if (f->kernel) count = kernel_parameters(f->kernel, parameter, bytes);
    if (kernelParams && extra) return CUDA_ERROR_INVALID_VALUE;
    if (extra) {
        const void *buffer = NULL;
        size_t size = 0;
        for (int i = 0; i < 16 && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
            if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
                buffer = extra[i + 1];
            else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[i + 1])
                size = *(const size_t *)extra[i + 1];
            else
                return CUDA_ERROR_INVALID_VALUE;
        }
        if (size > PARAMETER_BYTES || size < *bytes || (size && !buffer)) return CUDA_ERROR_INVALID_VALUE;
        memcpy(out, buffer, *bytes);
        return CUDA_SUCCESS;
    }
    if (count && !kernelParams) return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < count; i++) {
        if (!kernelParams[i]) return CUDA_ERROR_INVALID_VALUE;
        memcpy(out + parameter[i].offset, kernelParams[i], parameter[i].size);
    }
    return CUDA_SUCCESS;
}

static CUresult check_shape(const struct function *f, const unsigned int *grid, const unsigned int *block)
{
    static const unsigned int grid_max[3] = {2147483647u, 65535u, 65535u}, block_max[3] = {1024u, 1024u, 64u};
    for (int i = 0; i < 3; i++) {
        if (!grid[i] || !block[i] || grid[i] > grid_max[i] || block[i] > block_max[i])
            return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    uint32_t most = f->entry && f->entry->threads_max ? f->entry->threads_max : 1024;
    return threads > most ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/*
 * A kernel that the simulation knows by name only: reported once, because the result alone does not identify
 * it.
 */
static CUresult unknown_kernel(struct function *f)
{
    if (!__atomic_exchange_n(&f->told, true, __ATOMIC_RELAXED))
        fprintf(stderr,
                "simulated CUDA: kernel %s is not known to the simulation, its launches answer "
                "CUDA_ERROR_NOT_SUPPORTED\n",
                f->entry->name);
    sim_count_unserved(&process.sim, f->entry->name, true);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* Note the managed memory that a launch may use: behind each of its pointers as much as it moves in all. */
static void launch_touch(const struct context *c, struct work *w, uint64_t bytes)
{
    const struct launch_argument *l = w->argument;
    struct parameter parameter[PARAMETERS_MAX];
    uint32_t size, count = kernel_parameters(l->kernel, parameter, &size);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t address;
        if (l->kernel->signature[i] != 'p') continue;
        memcpy(&address, l->parameters + parameter[i].offset, sizeof address);
        w->touches = memory_touch(c, address, bytes, w->touch, w->touches);
    }
}

/*
 * A kernel bound by memory or arithmetic uses the whole card; one with a fixed duration uses as many
 * multiprocessors as it has blocks.
 */
static uint32_t launch_multiprocessors(const struct sim_profile *p, const unsigned int *grid,
                                       const struct kernel_cost *cost)
{
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    return cost->exact_ns && blocks < p->sm_count ? (uint32_t)blocks : 0;
}

CUresult launch_prepare(struct function *f, const struct launch_shape *shape, void **kernelParams,
                        void **extra, struct context *c, struct work *w, unsigned char *buffer)
{
    const unsigned int *grid = shape->grid, *block = shape->block;
    struct launch_argument *l = (struct launch_argument *)buffer;
    uint32_t bytes;
    CUresult result = check_shape(f, grid, block);
    if (result != CUDA_SUCCESS) return result;
    if (f->routine) return kernel_ptx_prepare(f, shape, kernelParams, extra, c, w, buffer, LAUNCH_BYTES);
    if (!f->kernel) return unknown_kernel(f);
    result = parameters_pack(f, kernelParams, extra, l->parameters, &bytes);
    if (result != CUDA_SUCCESS) return result;
    l->kernel = f->kernel;
    memcpy(l->grid, grid, sizeof l->grid);
    memcpy(l->block, block, sizeof l->block);
    struct kernel_call call = {.grid = {grid[0], grid[1], grid[2]},
                               .block = {block[0], block[1], block[2]},
                               .parameters = l->parameters};
    struct kernel_cost cost;
    f->kernel->cost(&call, &cost);
    *w = (struct work){.kind = WORK_TIMED,
                       .engine = SIM_WORK_KERNEL,
                       .duration_ns = kernel_duration(c->device->profile, &cost),
                       .sms = launch_multiprocessors(c->device->profile, grid, &cost),
                       .heavy = f->kernel->run && (cost.bytes > HEAVY_BYTES || cost.flops > HEAVY_FLOPS),
                       .effect = f->kernel->run ? launch_effect : NULL,
                       .argument = l,
                       .argument_bytes = sizeof *l + bytes};
    if (memory_is_tracked()) launch_touch(c, w, cost.bytes);
    return CUDA_SUCCESS;
}

static CUresult launch_prepare_of(CUfunction f, const struct launch_shape *shape, void **kernelParams,
                                  void **extra, struct context *c, struct work *w, unsigned char *buffer)
{
    MODULES_LOCKED;
    struct function *function = object_get(f, KIND_FUNCTION);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    return launch_prepare(function, shape, kernelParams, extra, c, w, buffer);
}

static CUresult launch_submit(CUfunction f, const struct launch_shape *shape, CUstream hStream,
                              void **kernelParams, void **extra)
{
    struct stream *s;
    struct work w;
    _Alignas(16) unsigned char buffer[LAUNCH_BYTES];
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (shape->dynamic_shared_bytes > 232448u) return CUDA_ERROR_INVALID_VALUE;
    OK_OR_RETURN(launch_prepare_of(f, shape, kernelParams, extra, s->context, &w, buffer));
    if (s->capture || s->legacy) {
        CUDA_KERNEL_NODE_PARAMS params = {.func = f,
                                          .gridDimX = shape->grid[0],
                                          .gridDimY = shape->grid[1],
                                          .gridDimZ = shape->grid[2],
                                          .blockDimX = shape->block[0],
                                          .blockDimY = shape->block[1],
                                          .blockDimZ = shape->block[2],
                                          .sharedMemBytes = shape->dynamic_shared_bytes};
        if (capture_work(s, NODE_KERNEL, &w, &params, sizeof params, &result)) return result;
    }
    return stream_submit(s, &w);
}

EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                               unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                               unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                               void **kernelParams, void **extra)
{
    const struct launch_shape shape = {.grid = {gridDimX, gridDimY, gridDimZ},
                                       .block = {blockDimX, blockDimY, blockDimZ},
                                       .dynamic_shared_bytes = sharedMemBytes};
    return launch_submit(f, &shape, hStream, kernelParams, extra);
}

/* Check that all blocks of a cooperative launch fit on the card at once. */
static CUresult cooperative_launch_fits(CUfunction f, const struct launch_shape *s)
{
    int blocks = 0;
    struct context *c;
    OK_OR_RETURN(context_enter(&c));
    OK_OR_RETURN(cuOccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks, f, (int)(s->block[0] * s->block[1] * s->block[2]), s->dynamic_shared_bytes));
    uint64_t most = (uint64_t)blocks * c->device->profile->sm_count;
    return (uint64_t)s->grid[0] * s->grid[1] * s->grid[2] > most ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
                                                                 : CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                          unsigned int gridDimZ, unsigned int blockDimX,
                                          unsigned int blockDimY, unsigned int blockDimZ,
                                          unsigned int sharedMemBytes, CUstream hStream, void **kernelParams)
{
    const struct launch_shape shape = {.grid = {gridDimX, gridDimY, gridDimZ},
                                       .block = {blockDimX, blockDimY, blockDimZ},
                                       .dynamic_shared_bytes = sharedMemBytes,
                                       .cooperative = true};
    OK_OR_RETURN(cooperative_launch_fits(f, &shape));
    return launch_submit(f, &shape, hStream, kernelParams, NULL);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
                                 void **extra)
{
    if (!config || (config->numAttrs && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
    struct launch_shape shape = {.grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                                 .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                                 .dynamic_shared_bytes = config->sharedMemBytes};
    for (unsigned int i = 0; i < config->numAttrs; i++) {
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            shape.cooperative = config->attrs[i].value.cooperative;
    }
    if (shape.cooperative) OK_OR_RETURN(cooperative_launch_fits(f, &shape));
    CUresult result = launch_submit(f, &shape, config->hStream, kernelParams, extra);
    for (unsigned int i = 0; result == CUDA_SUCCESS && i < config->numAttrs; i++) {
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT &&
            config->attrs[i].value.programmaticEvent.event)
            result = cuEventRecord(config->attrs[i].value.programmaticEvent.event, config->hStream);
    }
    return result;
}

/* ---- host functions ---- */

struct host_call {
    CUhostFn function;
    CUstreamCallback callback;
    void *data;
    CUstream stream;
};

static CUresult host_call_effect(struct context *c, void *argument)
{
    const struct host_call *h = argument;
    if (h->function)
        h->function(h->data);
    else
        h->callback(h->stream, c->sticky, h->data);
    return CUDA_SUCCESS;
}

static CUresult host_call_submit(CUstream hStream, const struct host_call *h)
{
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    struct work w = {
        .kind = WORK_HOST, .effect = host_call_effect, .argument = (void *)h, .argument_bytes = sizeof *h};
    CUDA_HOST_NODE_PARAMS params = {.fn = h->function, .userData = h->data};
    if (s->capture && h->callback) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (capture_work(s, NODE_HOST, &w, &params, sizeof params, &result)) return result;
    return stream_submit(s, &w);
}

EXPORT CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
    if (!fn) return CUDA_ERROR_INVALID_VALUE;
    return host_call_submit(hStream, &(struct host_call){.function = fn, .data = userData});
}

EXPORT CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData,
                                    unsigned int flags)
{
    if (!callback || flags) return CUDA_ERROR_INVALID_VALUE;
    return host_call_submit(hStream,
                            &(struct host_call){.callback = callback, .data = userData, .stream = hStream});
}

struct value_operation {
    uint64_t address, value;
    uint32_t flags;
    bool wide;
};

static uint64_t value_load(const struct value_operation *v)
{
    return v->wide ? __atomic_load_n((const uint64_t *)v->address, __ATOMIC_ACQUIRE)
                   : __atomic_load_n((const uint32_t *)v->address, __ATOMIC_ACQUIRE);
}

static bool value_is_reached(const struct value_operation *v)
{
    uint64_t now = value_load(v);
    switch (v->flags & 3u) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return v->wide ? (int64_t)(now - v->value) >= 0 : (int32_t)(uint32_t)(now - v->value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return now == v->value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (now & v->value) != 0;
    default:
        return (~(now | v->value) & (v->wide ? UINT64_MAX : UINT32_MAX)) != 0;
    }
}

static CUresult value_wait_effect(struct context *c, void *argument)
{
    const struct value_operation *v = argument;
    uint64_t pause = 1000;
    while (memory_allows(c, v->address, v->wide ? 8 : 4)) {
        if (value_is_reached(v)) return CUDA_SUCCESS;
        struct timespec t = {.tv_nsec = (long)pause};
        nanosleep(&t, NULL);
        if (pause < 200000) pause *= 2;
    }
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult value_write_effect(struct context *c, void *argument)
{
    const struct value_operation *v = argument;
    if (!memory_allows(c, v->address, v->wide ? 8 : 4)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (v->wide)
        __atomic_store_n((uint64_t *)v->address, v->value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)v->address, (uint32_t)v->value, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

static CUresult value_operation_submit(CUstream stream, CUdeviceptr address, uint64_t v, unsigned int flags,
                                       bool wide, bool wait)
{
    STREAM_OR_RETURN(s, stream);
    uint64_t size = wide ? 8 : 4;
    if (address % size || !memory_allows(s->context, address, size)) return CUDA_ERROR_INVALID_VALUE;
    if (s->capture) return unserved("captured cuStreamWaitValue and cuStreamWriteValue");
    struct value_operation o = {address, v, flags, wide};
    /*
     * A write takes place when the work before it has ended, and pollers may see it: it is treated as a host
     * function.
     */
    struct work w = {.kind = WORK_HOST,
                     .effect = wait ? value_wait_effect : value_write_effect,
                     .argument = &o,
                     .argument_bytes = sizeof o};
    return stream_submit(s, &w);
}

EXPORT CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t v, unsigned int flags)
{
    return value_operation_submit(stream, addr, v, flags, false, true);
}

EXPORT CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t v, unsigned int flags)
{
    return value_operation_submit(stream, addr, v, flags, true, true);
}

EXPORT CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t v, unsigned int flags)
{
    return value_operation_submit(stream, addr, v, flags, false, false);
}

EXPORT CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t v, unsigned int flags)
{
    return value_operation_submit(stream, addr, v, flags, true, false);
}
