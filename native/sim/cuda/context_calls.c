/*
 * Contexts as programs make and end them: primary and other ones, and the calls about the stack of a thread.
 */
#include "sim/cuda/call.h"
#include "sim/cuda/capture.h"
#include "sim/cuda/context.h"
#include "sim/cuda/event.h"
#include "sim/cuda/memory_end.h"
#include "sim/cuda/module.h"
#include "sim/cuda/mps.h"
#include "sim/cuda/object.h"
#include "sim/cuda/process.h"
#include "sim/cuda/stream_end.h"
#include "sim/cuda/work.h"
#include "sim/node/charge.h"
#include "sim/node/mps.h"
#include "sim/node/queue.h"
#include "sim/node/slot.h"
#include "sim/node/state.h"

static void set_limits(struct context *c)
{
    c->limit[CU_LIMIT_STACK_SIZE] = 1024;
    c->limit[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    c->limit[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    c->limit[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
    c->limit[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    c->limit[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 128;
    c->limit[CU_LIMIT_PERSISTING_L2_CACHE_SIZE] = 0;
}

/* Whether the card's compute mode lets this process have a context. */
static bool admitted(const struct device *d)
{
    if (d->shared->compute_mode == CU_COMPUTEMODE_PROHIBITED) return false;
    if (d->shared->compute_mode != CU_COMPUTEMODE_EXCLUSIVE_PROCESS) return true;
    sim_sweep(&process.sim, 0);
    for (int i = 0; i < (int)sim_procs_used(process.sim.node); i++) {
        const struct sim_proc *p = &process.sim.node->proc[i];
        const struct sim_proc_device *own = &process.sim.node->proc[process.sim.slot].device[d->index];
        if (i != process.sim.slot && p->state == SIM_SLOT_LIVE && p->device[d->index].context_count &&
            p->device[d->index].mig_line == own->mig_line && !sim_mps_admits(&process.sim, (uint32_t)i))
            return false;
    }
    return true;
}

/* The service's own context is small, for programs do not run in it. */
static uint64_t context_bytes(const struct device *d)
{
    return getenv(MPS_SERVER_ENVIRONMENT) ? MPS_SERVER_BYTES : d->shared->profile.context_bytes;
}

static CUresult activate(struct context *c)
{
    struct device *d = c->device;
    uint32_t barred = sim_mps_health(&process.sim);
    if (barred) return (CUresult)barred;
    if (__atomic_load_n(&d->shared->faults.lost, __ATOMIC_RELAXED)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (!admitted(d)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (!sim_charge(&process.sim, d->index, context_bytes(d), true))
        return sim_has_place(&process.sim, d->index) ? CUDA_ERROR_OUT_OF_MEMORY
                                                     : CUDA_ERROR_DEVICE_UNAVAILABLE;
    struct event **marks = calloc(SIM_QUEUE_ENTRIES, sizeof *marks);
    int queue = marks ? queue_open(&process.sim, d->index, 0) : -1;
    if (queue < 0) {
        free(marks);
        sim_refund(&process.sim, d->index, context_bytes(d), true);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&c->lock, NULL);
    c->queue = queue;
    c->marks = marks;
    c->sticky = CUDA_SUCCESS;
    c->last_blocking = 0;
    c->peers = 0;
    c->fatal_epoch = d->shared->faults.fatal_epoch;
    c->instance_epoch = device_instance_epoch(d);
    c->id = __atomic_add_fetch(&process.next_id, 1, __ATOMIC_RELAXED);
    set_limits(c);
    pthread_mutex_lock(&process.lock);
    c->next = process.contexts;
    process.contexts = c;
    pthread_mutex_unlock(&process.lock);
    __atomic_store_n(&c->active, true, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

/* The caller holds no lock. */
static void deactivate(struct context *c)
{
    struct device *d = c->device;
    if (context_health(c) == CUDA_SUCCESS) context_synchronize(c);
    pthread_mutex_lock(&process.lock);
    for (struct context **p = &process.contexts; *p; p = &(*p)->next) {
        if (*p == c) {
            *p = c->next;
            break;
        }
    }
    pthread_mutex_unlock(&process.lock);
    stream_release_all(c);
    event_forget_all(c);
    c->active = false;
    module_drop_context(c);
    memory_drop_context(c);
    queue_close(&process.sim, c->queue);
    sim_refund(&process.sim, d->index, context_bytes(d), true);
    free(c->marks);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->changed);
    c->marks = NULL;
    c->queue = -1;
}

/* ---- primary contexts ---- */

static pthread_mutex_t primaries = PTHREAD_MUTEX_INITIALIZER;

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    struct device *d = device_get(dev);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!d) return CUDA_ERROR_INVALID_DEVICE;
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&primaries);
    CUresult result = CUDA_SUCCESS;
    if (!d->primary->active) {
        d->primary->flags = d->primary_flags;
        result = activate(d->primary);
    }
    if (result == CUDA_SUCCESS) {
        d->primary_references++;
        *pctx = (CUcontext)d->primary;
    }
    pthread_mutex_unlock(&primaries);
    return result;
}

static CUresult primary_drop(CUdevice dev, bool all)
{
    struct device *d = device_get(dev);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!d) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&primaries);
    struct context *c = d->primary;
    if (!all && d->primary_references == 0) {
        pthread_mutex_unlock(&primaries);
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (d->primary_references && !all) d->primary_references--;
    bool gone = c->active && (all || d->primary_references == 0);
    if (gone) {
        d->primary_references = 0;
        deactivate(c);
    }
    pthread_mutex_unlock(&primaries);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    return primary_drop(dev, false);
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return primary_drop(dev, false);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    return primary_drop(dev, true);
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
    return primary_drop(dev, true);
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
    struct device *d = device_get(dev);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!d) return CUDA_ERROR_INVALID_DEVICE;
    if (!context_flags_are_valid(flags)) return CUDA_ERROR_INVALID_VALUE;
    d->primary_flags = flags;
    d->primary->flags = flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    struct device *d = device_get(dev);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!d) return CUDA_ERROR_INVALID_DEVICE;
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    *flags = d->primary_flags;
    *active = d->primary->active;
    return CUDA_SUCCESS;
}

/* ---- other contexts ---- */

static CUresult create(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    struct device *d = device_get(dev);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!pctx || !context_flags_are_valid(flags)) return CUDA_ERROR_INVALID_VALUE;
    if (!d) return CUDA_ERROR_INVALID_DEVICE;
    struct context *c = object_new(KIND_CONTEXT, sizeof *c);
    if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
    c->device = d;
    c->flags = flags;
    bool pushed = context_push(c);
    CUresult result = pushed ? activate(c) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        if (pushed) context_pop();
        object_free(c);
        return result;
    }
    *pctx = (CUcontext)c;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    return create(pctx, flags, dev);
}

EXPORT CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    return create(pctx, flags, dev);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                               unsigned int flags, CUdevice dev)
{
    if (numParams < 0 || (numParams > 0 && !paramsArray)) return CUDA_ERROR_INVALID_VALUE;
    return numParams ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : create(pctx, flags, dev);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
                               CUdevice dev)
{
    if (ctxCreateParams && (ctxCreateParams->numExecAffinityParams || ctxCreateParams->cigParams))
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return create(pctx, flags, dev);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct context *c = object_get(ctx, KIND_CONTEXT);
    if (!c || c->primary) return CUDA_ERROR_INVALID_CONTEXT;
    if (context_top() == c) context_pop();
    deactivate(c);
    object_free(c);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDestroy(CUcontext ctx)
{
    return cuCtxDestroy_v2(ctx);
}

EXPORT CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
    CONTEXT_OR_RETURN(c);
    if (!pctx || flags) return CUDA_ERROR_INVALID_VALUE;
    *pctx = (CUcontext)c;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDetach(CUcontext ctx)
{
    return object_get(ctx, KIND_CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* ---- the stack of a thread ---- */

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct context *c = object_get(ctx, KIND_CONTEXT);
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    return context_push(c) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuCtxPushCurrent(CUcontext ctx)
{
    return cuCtxPushCurrent_v2(ctx);
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct context *c = context_pop();
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    if (pctx) *pctx = (CUcontext)c;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent(CUcontext *pctx)
{
    return cuCtxPopCurrent_v2(pctx);
}

EXPORT CUresult cuCtxSetCurrent(CUcontext ctx)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct context *c = object_get(ctx, KIND_CONTEXT);
    if (ctx && !c) return CUDA_ERROR_INVALID_CONTEXT;
    context_set_current(c);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *pctx)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    *pctx = (CUcontext)object_get(context_top(), KIND_CONTEXT);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    struct context *c = context_current();
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = c->device->ordinal;
    return CUDA_SUCCESS;
}

/* The context that a call with an explicit context (NULL: the current one) is about. */
static CUresult named(CUcontext ctx, struct context **out)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct context *c = ctx ? object_get(ctx, KIND_CONTEXT) : context_current();
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    if (!c->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *out = c;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    struct context *c;
    OK_OR_RETURN(named(ctx, &c));
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = c->device->ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
    struct context *c;
    OK_OR_RETURN(named(ctx, &c));
    if (!ctxId) return CUDA_ERROR_INVALID_VALUE;
    *ctxId = c->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    struct context *c;
    OK_OR_RETURN(named(ctx, &c));
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void)
{
    struct context *c;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    result = capture_forbids();
    return result != CUDA_SUCCESS ? result : context_synchronize(c);
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
    struct context *c;
    CUresult result = named(ctx, &c);
    return result != CUDA_SUCCESS ? result : context_synchronize(c);
}
