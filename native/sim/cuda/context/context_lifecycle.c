/* Start and end of contexts: what a context takes of the card, and what is released with it. */
#include "sim/cuda/context/context_lifecycle.h"

#include "sim/cuda/memory/context_memory.h"
#include "sim/cuda/module/module.h"
#include "sim/cuda/process/mps_client.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/event.h"
#include "sim/cuda/stream/stream_destroy.h"
#include "sim/cuda/stream/stream_work.h"
#include "sim/node/charge.h"
#include "sim/node/mps.h"
#include "sim/node/queue.h"
#include "sim/node/slot.h"
#include "sim/node/state.h"

#define GREEN_BYTES (8ull << 20)

static void limits_set_defaults(struct context *c)
{
    c->limit[CU_LIMIT_STACK_SIZE] = 1024;
    c->limit[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    c->limit[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    c->limit[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
    c->limit[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    c->limit[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 128;
    c->limit[CU_LIMIT_PERSISTING_L2_CACHE_SIZE] = 0;
}

/* Return true if the card's compute mode permits this process a context. */
static bool compute_mode_permits(const struct device *d)
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

/*
 * The MPS server's own context is small, because programs do not run in it; a green one uses most of the
 * primary one.
 */
static uint64_t context_bytes(const struct context *c)
{
    const struct device *d = c->device;
    if (c->parent) return GREEN_BYTES;
    return getenv(MPS_SERVER_ENVIRONMENT) ? MPS_SERVER_BYTES : d->shared->profile.context_bytes;
}

CUresult context_activate(struct context *c)
{
    struct device *d = c->device;
    uint32_t barred = sim_mps_health(&process.sim);
    if (barred) return (CUresult)barred;
    if (__atomic_load_n(&d->shared->faults.lost, __ATOMIC_RELAXED)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (!compute_mode_permits(d)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (!sim_charge(&process.sim, d->index, context_bytes(c), true))
        return sim_instance_is_valid(&process.sim, d->index) ? CUDA_ERROR_OUT_OF_MEMORY
                                                             : CUDA_ERROR_DEVICE_UNAVAILABLE;
    struct event **marks = calloc(SIM_QUEUE_ENTRIES, sizeof *marks);
    int queue = marks ? queue_open(&process.sim, d->index, 0) : -1;
    if (queue < 0) {
        free(marks);
        sim_refund(&process.sim, d->index, context_bytes(c), true);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&c->lock, NULL);
    c->queue = queue;
    if (c->sm_count && d->profile->sm_count)
        process.sim.node->queue[queue].share =
            (uint32_t)((uint64_t)SIM_QUEUE_WHOLE * c->sm_count / d->profile->sm_count);
    c->marks = marks;
    c->sticky = CUDA_SUCCESS;
    c->ending_ns = 0;
    c->last_blocking = 0;
    c->peers = 0;
    c->fatal_epoch = d->shared->faults.fatal_epoch;
    c->instance_epoch = device_instance_epoch(d);
    c->id = __atomic_add_fetch(&process.next_id, 1, __ATOMIC_RELAXED);
    limits_set_defaults(c);
    pthread_mutex_lock(&process.lock);
    c->next = process.contexts;
    process.contexts = c;
    pthread_mutex_unlock(&process.lock);
    __atomic_store_n(&c->active, true, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

/* The caller holds no lock. */
void context_deactivate(struct context *c)
{
    struct device *d = c->device;
    __atomic_store_n(&c->ending_ns, sim_now(), __ATOMIC_RELAXED);
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
    events_drop_all(c);
    c->active = false;
    module_drop_context(c);
    memory_drop_context(c);
    queue_close(&process.sim, c->queue);
    sim_refund(&process.sim, d->index, context_bytes(c), true);
    pthread_mutex_lock(&c->lock);
    free(c->marks);
    c->marks = NULL;
    pthread_mutex_unlock(&c->lock);
    /*
     * The lock and the queue number are kept: another thread that was waiting in the context may still read
     * them.
     */
}
