/*
 * Launches of interpreted PTX kernels. The effect of a launch is its execution, in the stream's thread; its
 * time on the card is known afterwards, from what was executed: the larger of operations / peak and bytes /
 * bandwidth.
 */
#include "sim/cuda/launch/kernel_ptx.h"

#include "sim/cuda/launch/kernel_output.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/memory/registered_memory.h"
#include "sim/cuda/module/module_code.h"
#include "sim/ptx/grid.h"

#include <stdio.h>

#define ENDING_NS       2000000000ull /* longest wait for a kernel by a context that is being destroyed */
#define BLOCK_BYTES_MAX (2ull << 30)  /* of this machine's memory */

struct ptx_launch { /* the argument of the effect; parameters follow */
    struct function *function;
    struct launch_shape shape;
    uint64_t ops, bytes;
    _Alignas(16) unsigned char parameters[];
};

static char heap; /* its address marks the owner of heap ranges */

static bool callback_memory_at(void *user, uint64_t address, struct span *out)
{
    return memory_span(user, address, &out->base, &out->end);
}

static bool context_end_is_overdue(const struct context *c)
{
    uint64_t since = __atomic_load_n(&c->ending_ns, __ATOMIC_RELAXED);
    return since && sim_now() - since > ENDING_NS;
}

static bool callback_is_cancelled(void *user)
{
    const struct context *c = user;
    if (context_end_is_overdue(c) || context_end_is_overdue(context_home(user))) return true;
    return __atomic_load_n(&c->device->shared->faults.lost, __ATOMIC_RELAXED) ||
           __atomic_load_n(&c->device->shared->faults.fatal_epoch, __ATOMIC_RELAXED) != c->fatal_epoch;
}

static void callback_print(void *user, const char *text, size_t length)
{
    (void)user;
    output_add(text, length);
}

static void callback_report(void *user, const char *text, size_t length)
{
    (void)user;
    fwrite(text, 1, length, stderr);
}

static uint64_t callback_heap_take(void *user, uint64_t bytes)
{
    struct context *c = context_home(user);
    struct range *r;
    if (!bytes || bytes > c->limit[CU_LIMIT_MALLOC_HEAP_SIZE]) return 0;
    if (memory_take(c, c->device, bytes, MEMORY_DEVICE, &r) != CUDA_SUCCESS) return 0;
    r->owner = &heap;
    return r->base;
}

static void callback_heap_give(void *user, uint64_t address)
{
    (void)user;
    memory_lock();
    struct range *r = range_find_any(address);
    bool ours = r && r->base == address && r->owner == &heap;
    if (ours) r->owner = NULL;
    memory_unlock();
    if (ours) memory_drop(r);
}

static void failure_report(const struct run *r)
{
    if (r->failure_text[0]) fprintf(stderr, "simulated CUDA: %s\n", r->failure_text);
}

static CUresult launch_effect(struct context *c, void *argument)
{
    static uint64_t launches;
    struct ptx_launch *l = argument;
    struct module *m = l->function->module;
    const struct placed *placed;
    const struct surroundings around = {.user = c,
                                        .memory = callback_memory_at,
                                        .cancelled = callback_is_cancelled,
                                        .print = callback_print,
                                        .print_error = callback_report,
                                        .take = callback_heap_take,
                                        .give = callback_heap_give};
    OK_OR_RETURN(code_place(m->code, context_home(c), m, &placed));
    struct run r = {.entry = l->function->routine,
                    .placed = placed,
                    .around = &around,
                    .shape = l->shape,
                    .parameters = l->parameters,
                    .number = __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED)};
    CUresult result = (CUresult)grid_run(&r);
    l->ops = r.ops;
    l->bytes = r.bytes;
    if (result != CUDA_SUCCESS) failure_report(&r);
    return result;
}

/* As many multiprocessors as there are blocks; 0: all of them. */
static uint32_t launch_multiprocessors(const struct ptx_launch *l)
{
    const unsigned int *grid = l->shape.grid;
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    return blocks < l->shape.sm_count ? (uint32_t)blocks : 0;
}

/*
 * Modelled time: an operation of a warp is 32 multiply-adds of the card's peak, of which a kernel has the part
 * of its multiprocessors.
 */
static uint64_t launch_duration(struct context *c, const void *argument)
{
    const struct ptx_launch *l = argument;
    uint64_t all = l->shape.sm_count, sms = launch_multiprocessors(l) ? launch_multiprocessors(l) : all;
    struct kernel_cost cost = {.bytes = l->bytes * all / sms, .flops = 2 * LANES * l->ops * all / sms};
    return kernel_duration(c->device->profile, &cost);
}

static CUresult parameters_from_buffer(void **extra, const struct routine *f, unsigned char *out)
{
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
    if (size < f->parameter_bytes || (f->parameter_bytes && !buffer)) return CUDA_ERROR_INVALID_VALUE;
    memcpy(out, buffer, f->parameter_bytes);
    return CUDA_SUCCESS;
}

static CUresult parameters_pack(const struct routine *f, void **kernelParams, void **extra,
                                unsigned char *out)
{
    if (kernelParams && extra) return CUDA_ERROR_INVALID_VALUE;
    if (extra) return parameters_from_buffer(extra, f, out);
    if (f->parameter_count && !kernelParams) return CUDA_ERROR_INVALID_VALUE;
    memset(out, 0, f->parameter_bytes);
    for (uint32_t i = 0; i < f->parameter_count; i++) {
        if (!kernelParams[i]) return CUDA_ERROR_INVALID_VALUE;
        memcpy(out + f->parameter[i].offset, kernelParams[i], f->parameter[i].bytes);
    }
    return CUDA_SUCCESS;
}

static CUresult launch_check(const struct function *f, const struct launch_shape *s)
{
    const struct routine *r = f->routine;
    uint32_t shared = f->entry->shared_bytes + s->dynamic_shared_bytes;
    uint32_t most =
        f->attribute_shared_max > 0 ? (uint32_t)f->attribute_shared_max + f->entry->shared_bytes : 49152u;
    if (shared > (most < 49152u ? 49152u : most)) return CUDA_ERROR_INVALID_VALUE;
    if (grid_block_bytes(code_program(f->module->code), r, s) > BLOCK_BYTES_MAX)
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    for (int i = 0; i < 3; i++) {
        if (r->threads_required[0] && r->threads_required[i] != s->block[i]) return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* Note managed memory that the parameters point to; how much of it is used is not known beforehand. */
static void launch_touch(const struct context *c, const struct routine *f, struct work *w)
{
    const struct ptx_launch *l = w->argument;
    for (uint32_t i = 0; i < f->parameter_count; i++) {
        uint64_t address;
        if (f->parameter[i].bytes != sizeof address) continue;
        memcpy(&address, l->parameters + f->parameter[i].offset, sizeof address);
        w->touches = memory_touch(c, address, UINT64_MAX, w->touch, w->touches);
    }
}

CUresult kernel_ptx_prepare(struct function *f, const struct launch_shape *shape, void **kernelParams,
                            void **extra, struct context *c, struct work *w, unsigned char *buffer,
                            size_t capacity)
{
    struct ptx_launch *l = (struct ptx_launch *)buffer;
    const struct routine *r = f->routine;
    const struct placed *placed;
    if (sizeof *l + r->parameter_bytes > capacity) return CUDA_ERROR_NOT_SUPPORTED;
    OK_OR_RETURN(launch_check(f, shape));
    *l = (struct ptx_launch){.function = f, .shape = *shape};
    l->shape.sm_count = c->device->profile->sm_count;
    OK_OR_RETURN(parameters_pack(r, kernelParams, extra, l->parameters));
    /* its cost is known at once */
    OK_OR_RETURN(code_place(f->module->code, context_home(c), f->module, &placed));
    *w = (struct work){.kind = WORK_TIMED,
                       .engine = SIM_WORK_KERNEL,
                       .heavy = true,
                       .effect = launch_effect,
                       .sms = launch_multiprocessors(l),
                       .late = launch_duration,
                       .argument = l,
                       .argument_bytes = sizeof *l + r->parameter_bytes};
    if (memory_is_tracked()) launch_touch(c, r, w);
    return CUDA_SUCCESS;
}

bool kernel_ptx_is(const struct work *w)
{
    return w->effect == launch_effect;
}

void kernel_ptx_parameters(const struct work *w, void **out)
{
    struct ptx_launch *l = w->argument;
    const struct routine *r = l->function->routine;
    for (uint32_t i = 0; i < r->parameter_count; i++)
        out[i] = l->parameters + r->parameter[i].offset;
}
