/*
 * Contexts: their provisional cost, and what dies with them.
 *
 * The first context of this process on a device is charged limits.context_bytes, the agent's learned figure,
 * so that a slice cannot be overrun by contexts before the agent has measured them; the agent takes the
 * charge back when its residual covers the process (see page.h). A context's allocations are freed by the
 * driver together with it: the ledger's entries of that context are uncharged then.
 */
#include "shim/shim.h"

#include "shim/compute.h"

#include <stdlib.h>

struct context {
    struct context *next;
    CUcontext handle;
    int device;
    unsigned retained; /* primary contexts: how often; others 1 */
    bool primary;
};

static struct context *contexts;
static unsigned open_count[CB_DEVICES_MAX];
static cb_spin lock;

CUresult CUDAAPI cuInit(unsigned int Flags)
{
    CB_ENTER();
    if (__atomic_load_n(&cb.ordinal_count, __ATOMIC_ACQUIRE) == 0) cb_devices_narrow();
    CUresult result = CB_REAL(cuInit)(Flags);
    if (result == CUDA_SUCCESS && __atomic_load_n(&cb.ordinal_count, __ATOMIC_ACQUIRE) == 0)
        cb_devices_learn();
    return result;
}

/* Before a context is made: refuses a foreign device and reserves the cost of the first one. */
static CUresult opening(CUdevice ordinal, int *device, uint64_t *cost)
{
    *cost = 0;
    *device = cb_device_of(ordinal);
    if (*device < 0)
        return ordinal >= 0 && ordinal < cb.ordinal_count ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
    *device = cb_device_charged(*device);
    if (*device < 0) return CUDA_SUCCESS;
    cb_lock(&lock);
    bool first = open_count[*device]++ == 0;
    cb_unlock(&lock);
    if (!first) return CUDA_SUCCESS;
    *cost = cb_cost(__atomic_load_n(&cb.limits->device[*device].context_bytes, __ATOMIC_ACQUIRE));
    if (cb.limits->device[*device].context_bytes == 0) *cost = 0;
    if (*cost == 0 || cb_reserve(*device, *cost)) return CUDA_SUCCESS;
    cb_lock(&lock);
    open_count[*device]--;
    cb_unlock(&lock);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void closed(int device)
{
    if (device < 0) return;
    cb_lock(&lock);
    bool last = open_count[device] > 0 && --open_count[device] == 0;
    cb_unlock(&lock);
    __atomic_fetch_sub(&cb.proc->context_count, 1, __ATOMIC_RELAXED);
    if (last) {
        cb_uncharge(device, __atomic_exchange_n(&cb.proc->context_bytes[device], 0, __ATOMIC_ACQ_REL));
        cb_pools_refresh(device);
    }
}

static void opened(CUresult result, CUcontext handle, int device, uint64_t cost, bool primary)
{
    if (device < 0) return;
    if (cost > 0) {
        if (result == CUDA_SUCCESS) {
            __atomic_store_n(&cb.proc->context_bytes[device], cost, __ATOMIC_RELEASE);
            cb_commit(device, cost);
        } else {
            cb_cancel(device, cost);
        }
    }
    cb_lock(&lock);
    struct context *known = NULL;
    if (result == CUDA_SUCCESS && primary)
        for (known = contexts; known != NULL && !(known->primary && known->device == device);
             known = known->next) {
        }
    if (result != CUDA_SUCCESS || known != NULL)
        open_count[device]--; /* none was made, or the primary one was open already */
    if (known != NULL) known->retained++;
    cb_unlock(&lock);
    if (result != CUDA_SUCCESS || known != NULL) return;
    __atomic_fetch_add(&cb.proc->context_count, 1, __ATOMIC_RELAXED);
    struct context *context = malloc(sizeof(*context));
    if (context == NULL) return; /* its end will not be noticed; the process' end will */
    *context = (struct context){.handle = handle, .device = device, .retained = 1, .primary = primary};
    cb_lock(&lock);
    context->next = contexts;
    contexts = context;
    cb_unlock(&lock);
}

/* Takes the record of a context out of the list when it is the one looked for; `releases` 0: whatever is
 * retained. */
static bool take(CUcontext handle, int primary_of_device, bool all, struct context *taken)
{
    struct context *found = NULL;
    cb_lock(&lock);
    for (struct context **link = &contexts; *link != NULL; link = &(*link)->next) {
        struct context *context = *link;
        bool wanted = handle != NULL ? !context->primary && context->handle == handle
                                     : context->primary && context->device == primary_of_device;
        if (!wanted) continue;
        if (all || --context->retained == 0) {
            found = context;
            *link = context->next;
        }
        break;
    }
    cb_unlock(&lock);
    if (found == NULL) return false;
    *taken = *found;
    free(found);
    return true;
}

static void ended(const struct context *context)
{
    cb_ledger_drop_context(context->device, (uint64_t)(uintptr_t)context->handle);
    closed(context->device);
}

#define CREATE(ordinal, is_primary, call)                                                \
    do {                                                                                 \
        int device;                                                                      \
        uint64_t cost;                                                                   \
        CB_ENTER();                                                                      \
        CUresult result = opening(ordinal, &device, &cost);                              \
        if (result != CUDA_SUCCESS) return result;                                       \
        result = call;                                                                   \
        opened(result, result == CUDA_SUCCESS ? *pctx : NULL, device, cost, is_primary); \
        return result;                                                                   \
    } while (0)

CUresult CUDAAPI cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    CREATE(dev, false, CB_REAL(cuCtxCreate)(pctx, flags, dev));
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    CREATE(dev, false, CB_REAL(cuCtxCreate_v2)(pctx, flags, dev));
}

CUresult CUDAAPI cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                                unsigned int flags, CUdevice dev)
{
    CREATE(dev, false, CB_REAL(cuCtxCreate_v3)(pctx, paramsArray, numParams, flags, dev));
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
                                CUdevice dev)
{
    CREATE(dev, false, CB_REAL(cuCtxCreate_v4)(pctx, ctxCreateParams, flags, dev));
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    CREATE(dev, true, CB_REAL(cuDevicePrimaryCtxRetain)(pctx, dev));
}

static CUresult destroy(CUresult (*real)(CUcontext), CUcontext ctx)
{
    struct context context;
    cb_compute_forget_context(ctx);
    CUresult result = real(ctx);
    if (result == CUDA_SUCCESS && ctx != NULL && take(ctx, -1, true, &context)) ended(&context);
    return result;
}

CUresult CUDAAPI cuCtxDestroy(CUcontext ctx)
{
    CB_ENTER();
    return destroy(CB_REAL(cuCtxDestroy), ctx);
}

CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx)
{
    CB_ENTER();
    return destroy(CB_REAL(cuCtxDestroy_v2), ctx);
}

/* The primary context of a device if the next release, or a reset, ends it. */
static CUcontext primary_ending(int device, bool reset)
{
    CUcontext handle = NULL;
    cb_lock(&lock);
    for (struct context *context = contexts; context != NULL; context = context->next)
        if (context->primary && context->device == device && (reset || context->retained == 1))
            handle = context->handle;
    cb_unlock(&lock);
    return handle;
}

static CUresult leave_primary(CUresult (*real)(CUdevice), CUdevice dev, bool reset)
{
    struct context context;
    CUcontext ending = primary_ending(cb_device_of(dev), reset);
    if (ending != NULL) cb_compute_forget_context(ending);
    CUresult result = real(dev);
    if (result == CUDA_SUCCESS && take(NULL, cb_device_of(dev), reset, &context)) ended(&context);
    return result;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev)
{
    CB_ENTER();
    return leave_primary(CB_REAL(cuDevicePrimaryCtxRelease), dev, false);
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    CB_ENTER();
    return leave_primary(CB_REAL(cuDevicePrimaryCtxRelease_v2), dev, false);
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice dev)
{
    CB_ENTER();
    return leave_primary(CB_REAL(cuDevicePrimaryCtxReset), dev, true);
}

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    CB_ENTER();
    return leave_primary(CB_REAL(cuDevicePrimaryCtxReset_v2), dev, true);
}

void cb_contexts_forked(void)
{
    contexts = NULL;
    lock.held = 0;
    for (unsigned i = 0; i < CB_DEVICES_MAX; i++)
        open_count[i] = 0;
}
