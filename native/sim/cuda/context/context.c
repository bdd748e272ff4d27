/* Health of contexts, and the stack of contexts of each thread. */
#include "sim/cuda/context/context.h"

#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"
#include "sim/node/mps.h"
#include "sim/node/process_gate.h"

#define STACK_MAX 64

struct thread_stack {
    struct context *context[STACK_MAX];
    int depth;
};

static __thread struct thread_stack thread_stack;

/* A context may have been destroyed while it was on a thread's stack. */
static struct context *context_if_alive(struct context *c)
{
    c = object_get(c, KIND_CONTEXT);
    return c && c->active ? c : NULL;
}

struct context *context_current(void)
{
    return thread_stack.depth ? context_if_alive(thread_stack.context[thread_stack.depth - 1]) : NULL;
}

void context_set_current(struct context *c)
{
    if (!c) {
        if (thread_stack.depth) thread_stack.depth--;
    } else if (thread_stack.depth) {
        thread_stack.context[thread_stack.depth - 1] = c;
    } else {
        thread_stack.context[thread_stack.depth++] = c;
    }
}

bool context_push(struct context *c)
{
    if (thread_stack.depth == STACK_MAX) return false;
    thread_stack.context[thread_stack.depth++] = c;
    return true;
}

struct context *context_top(void)
{
    return thread_stack.depth ? thread_stack.context[thread_stack.depth - 1] : NULL;
}

struct context *context_pop(void)
{
    return thread_stack.depth ? thread_stack.context[--thread_stack.depth] : NULL;
}

CUresult context_health(struct context *c)
{
    const struct sim_faults *f = &c->device->shared->faults;
    const struct sim_proc *self = &process.sim.node->proc[process.sim.slot];
    /* A program that closed descriptors it did not open has lost the lock that proves its liveness. */
    if (self->state != SIM_SLOT_LIVE || self->generation != process.generation)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    CUresult sticky = context_home(c)->sticky;
    /*
     * An operation that the simulation does not support is no fault of the card: the error is returned once,
     * and the program may go on.
     */
    if (sticky == CUDA_ERROR_NOT_SUPPORTED) context_home(c)->sticky = CUDA_SUCCESS;
    if (sticky != CUDA_SUCCESS) return sticky;
    uint32_t barred = sim_mps_health(&process.sim);
    if (barred) return (CUresult)barred;
    if (__atomic_load_n(&f->lost, __ATOMIC_RELAXED)) return CUDA_ERROR_UNKNOWN;
    if (__atomic_load_n(&f->fatal_epoch, __ATOMIC_RELAXED) != c->fatal_epoch)
        return f->fatal_result ? (CUresult)f->fatal_result : CUDA_ERROR_ECC_UNCORRECTABLE;
    if (device_instance_epoch(c->device) != c->instance_epoch) return CUDA_ERROR_ECC_UNCORRECTABLE;
    return CUDA_SUCCESS;
}

CUresult context_enter(struct context **out)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!thread_stack.depth) return CUDA_ERROR_INVALID_CONTEXT;
    sim_gate(&process.sim);
    struct context *c = context_if_alive(thread_stack.context[thread_stack.depth - 1]);
    if (!c) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *out = c;
    return context_health(c);
}

struct context *context_of_primary(struct device *d)
{
    struct context *c = object_new(KIND_CONTEXT, sizeof *c);
    if (!c) return NULL;
    c->device = d;
    c->primary = true;
    c->queue = -1;
    return c;
}

bool context_flags_are_valid(unsigned int flags)
{
    return (flags & ~(unsigned int)CU_CTX_FLAGS_MASK) == 0;
}
