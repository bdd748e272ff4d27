/*
 * Contexts: what each costs, and what dies with it.
 *
 * Every context of a device is charged limits.context_bytes, the agent's learned figure, before the driver is
 * called: made by cuCtxCreate in whatever version, by the first retain of the primary one, for graphics, or a
 * green one. So a slice cannot be overrun by contexts. A context's allocations are freed by the driver
 * together with it: the ledger's entries of that context are uncharged then.
 */
#include "shim/base.h"

#include "shim/charge.h"
#include "shim/device.h"
#include "shim/door.h"
#include "shim/ledger.h"
#include "shim/pool.h"
#include "shim/real.h"
#include "shim/spin.h"
#include "shim/start.h"

#include "shim/compute.h"

#include <stdlib.h>

enum kind { PLAIN, PRIMARY, GREEN };

struct context {
    struct context *next;
    void *handle;
    uint64_t bytes; /* what it was charged */
    int device;
    unsigned retained; /* primary contexts: how often; others 1 */
    enum kind kind;
};

static struct context *contexts;
static cb_spin lock;

CUresult CUDAAPI cuInit(unsigned int Flags)
{
    CB_ENTER();
    if (__atomic_load_n(&cb.ordinal_count, __ATOMIC_ACQUIRE) > 0) return CB_REAL(cuInit)(Flags);
    cb_devices_narrow();
    int door = cb_door_enter();
    CUresult result = CB_REAL(cuInit)(Flags);
    cb_door_leave(door, result);
    if (result == CUDA_SUCCESS) cb_devices_learn();
    return result;
}

/* Under the lock. */
static struct context *primary_of(int device)
{
    struct context *context = contexts;
    while (context != NULL && !(context->kind == PRIMARY && context->device == device))
        context = context->next;
    return context;
}

static bool is_open(int device)
{
    cb_lock(&lock);
    bool found = primary_of(device) != NULL;
    cb_unlock(&lock);
    return found;
}

/* Before a context is made: refuses a foreign device and reserves what it will cost. */
static CUresult opening(CUdevice ordinal, enum kind kind, int *device, uint64_t *cost)
{
    *cost = 0;
    *device = cb_device_of(ordinal);
    if (*device < 0)
        return ordinal >= 0 && ordinal < cb.ordinal_count ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
    *device = cb_device_charged(*device);
    if (*device < 0 || (kind == PRIMARY && is_open(*device))) return CUDA_SUCCESS;
    const struct cb_limits_device *limits = &cb.limits->device[*device];
    uint64_t learned = __atomic_load_n(&limits->context_bytes, __ATOMIC_ACQUIRE);
    uint64_t limit = cb_cap(limits);
    if (learned == 0) return CUDA_SUCCESS;
    if (limit != 0 && cb_cost(learned) > limit)
        cb_say("one context on this device takes %llu MiB and the slice has %llu MiB of memory; "
               "hint: ask for more",
               (unsigned long long)learned >> 20, (unsigned long long)limit >> 20);
    *cost = cb_cost(learned);
    if (cb_reserve(*device, *cost)) return CUDA_SUCCESS;
    *cost = 0;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void opened(CUresult result, void *handle, int device, uint64_t cost, enum kind kind)
{
    if (device < 0) return;
    struct context *context = result == CUDA_SUCCESS ? malloc(sizeof(*context)) : NULL;
    bool made = result == CUDA_SUCCESS; /* and not: the primary one was open already */
    cb_lock(&lock);
    struct context *known = made && kind == PRIMARY ? primary_of(device) : NULL;
    if (known != NULL) {
        known->retained++;
        made = false;
    } else if (context != NULL) { /* else its end will not be noticed; the process' end will */
        *context = (struct context){contexts, handle, cost, device, 1, kind};
        contexts = context;
    }
    cb_unlock(&lock);
    if (!made) {
        if (known != NULL) free(context);
        if (cost > 0) cb_cancel(device, cost);
        return;
    }
    __atomic_fetch_add(&cb.proc->context_count, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&cb.proc->context_bytes[device], cost, __ATOMIC_RELAXED);
    cb_commit(device, cost);
}

/* Takes the record of a context out of the list when it is the one looked for; `all`: however often it is
 * retained. */
static bool take(void *handle, int primary_of_device, bool all, struct context *taken)
{
    struct context *found = NULL;
    cb_lock(&lock);
    for (struct context **link = &contexts; *link != NULL; link = &(*link)->next) {
        struct context *context = *link;
        bool wanted = handle != NULL ? context->kind != PRIMARY && context->handle == handle
                                     : context->kind == PRIMARY && context->device == primary_of_device;
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
    int device = context->device;
    cb_ledger_drop_context(device, (uint64_t)(uintptr_t)context->handle);
    __atomic_fetch_sub(&cb.proc->context_count, 1, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&cb.proc->context_bytes[device], context->bytes, __ATOMIC_RELAXED);
    cb_uncharge(device, context->bytes);
    cb_pools_refresh(device);
}

#define CREATE(ordinal, kind, out, call)                                            \
    do {                                                                            \
        int device;                                                                 \
        uint64_t cost;                                                              \
        CB_ENTER();                                                                 \
        CUresult result = opening(ordinal, kind, &device, &cost);                   \
        if (result != CUDA_SUCCESS) return result;                                  \
        CB_CALL_DRIVER(result, call);                                               \
        opened(result, result == CUDA_SUCCESS ? *(out) : NULL, device, cost, kind); \
        return result;                                                              \
    } while (0)

CUresult CUDAAPI cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    CREATE(dev, PLAIN, pctx, CB_REAL(cuCtxCreate)(pctx, flags, dev));
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    CREATE(dev, PLAIN, pctx, CB_REAL(cuCtxCreate_v2)(pctx, flags, dev));
}

CUresult CUDAAPI cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                                unsigned int flags, CUdevice dev)
{
    CREATE(dev, PLAIN, pctx, CB_REAL(cuCtxCreate_v3)(pctx, paramsArray, numParams, flags, dev));
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
                                CUdevice dev)
{
    CREATE(dev, PLAIN, pctx, CB_REAL(cuCtxCreate_v4)(pctx, ctxCreateParams, flags, dev));
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    CREATE(dev, PRIMARY, pctx, CB_REAL(cuDevicePrimaryCtxRetain)(pctx, dev));
}

CUresult CUDAAPI cuGLCtxCreate(CUcontext *pCtx, unsigned int Flags, CUdevice dev)
{
    CREATE(dev, PLAIN, pCtx, CB_REAL(cuGLCtxCreate)(pCtx, Flags, dev));
}

CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext *pCtx, unsigned int Flags, CUdevice dev)
{
    CREATE(dev, PLAIN, pCtx, CB_REAL(cuGLCtxCreate_v2)(pCtx, Flags, dev));
}

CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
    CREATE(dev, GREEN, phCtx, CB_REAL(cuGreenCtxCreate)(phCtx, desc, dev, flags));
}

CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx hCtx)
{
    struct context context;
    CB_ENTER();
    CUresult result = CB_REAL(cuGreenCtxDestroy)(hCtx);
    if (result == CUDA_SUCCESS && hCtx != NULL && take(hCtx, -1, true, &context)) ended(&context);
    return result;
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
    const struct context *context = primary_of(device);
    if (context != NULL && (reset || context->retained == 1)) handle = context->handle;
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

static void forked(void)
{
    contexts = NULL;
    lock.held = 0;
}
CB_AT_FORK(forked);
