/* Records of the contexts of this process and of the charge of each; context_book.h has the theory. */
#include "shim/context_book.h"

#include "shim/charge.h"
#include "shim/device.h"
#include "shim/ledger.h"
#include "shim/pool.h"
#include "shim/spin.h"

#include <stdlib.h>

#define GREEN_BYTES \
    (16ull << 20) /* cost of a green context beside the primary one, whose memory and code it uses */

static struct cb_context *contexts;
static cb_spin contexts_lock;
static unsigned converted_count; /* converted handles in the list: tested before the list is searched */

/* Requires the lock. */
static struct cb_context *primary_record(int device)
{
    struct cb_context *context = contexts;
    while (context != NULL && !(context->kind == CB_CONTEXT_PRIMARY && context->device == device))
        context = context->next;
    return context;
}

static bool primary_is_open(int device)
{
    cb_lock(&contexts_lock);
    bool found = primary_record(device) != NULL;
    cb_unlock(&contexts_lock);
    return found;
}

CUresult cb_context_opening(CUdevice ordinal, enum cb_context_kind kind, int *device, uint64_t *cost)
{
    *cost = 0;
    *device = cb_device_of(ordinal);
    if (*device < 0)
        return ordinal >= 0 && ordinal < cb.ordinal_count ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
    *device = cb_device_charged(*device);
    if (*device < 0 || (kind == CB_CONTEXT_PRIMARY && primary_is_open(*device))) return CUDA_SUCCESS;
    const struct cb_limits_device *limits = &cb.limits->device[*device];
    uint64_t learned = __atomic_load_n(&limits->context_bytes, __ATOMIC_ACQUIRE);
    uint64_t limit = cb_cap(limits);
    if (learned == 0) return CUDA_SUCCESS;
    if (limit != 0 && kind != CB_CONTEXT_GREEN && cb_cost(learned) > limit)
        cb_say("one context on this device takes %llu MiB and the slice has %llu MiB of memory; "
               "hint: request more memory",
               (unsigned long long)learned >> 20, (unsigned long long)limit >> 20);
    *cost = cb_cost(kind == CB_CONTEXT_GREEN && learned > GREEN_BYTES ? GREEN_BYTES : learned);
    if (cb_reserve(*device, *cost)) return CUDA_SUCCESS;
    *cost = 0;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void cb_context_opened(CUresult result, void *handle, int device, uint64_t cost, enum cb_context_kind kind)
{
    if (device < 0) return;
    struct cb_context *context = result == CUDA_SUCCESS ? malloc(sizeof(*context)) : NULL;
    bool made = result == CUDA_SUCCESS; /* cleared if the primary context was open already */
    cb_lock(&contexts_lock);
    struct cb_context *known = made && kind == CB_CONTEXT_PRIMARY ? primary_record(device) : NULL;
    if (known != NULL) {
        known->retained++;
        made = false;
    } else if (context != NULL) { /* else its end will not be noticed, only the process's end */
        *context = (struct cb_context){contexts, handle, NULL, cost, device, 1, kind};
        contexts = context;
    }
    cb_unlock(&contexts_lock);
    if (!made) {
        if (known != NULL) free(context);
        if (cost > 0) cb_cancel(device, cost);
        return;
    }
    __atomic_fetch_add(&cb.proc->context_count, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&cb.proc->context_bytes[device], cost, __ATOMIC_RELAXED);
    cb_commit(device, cost);
}

bool cb_context_take(void *handle, int primary_of_device, bool all, struct cb_context *taken)
{
    struct cb_context *found = NULL;
    cb_lock(&contexts_lock);
    for (struct cb_context **link = &contexts; *link != NULL; link = &(*link)->next) {
        struct cb_context *context = *link;
        bool wanted = handle != NULL
                          ? context->kind != CB_CONTEXT_PRIMARY && context->handle == handle
                          : context->kind == CB_CONTEXT_PRIMARY && context->device == primary_of_device;
        if (!wanted) continue;
        if (all || --context->retained == 0) {
            found = context;
            *link = context->next;
        }
        break;
    }
    cb_unlock(&contexts_lock);
    if (found == NULL) return false;
    if (found->converted != NULL) __atomic_fetch_sub(&converted_count, 1, __ATOMIC_RELAXED);
    *taken = *found;
    free(found);
    return true;
}

void cb_context_ended(const struct cb_context *context)
{
    int device = context->device;
    cb_ledger_drop_context(device, (uint64_t)(uintptr_t)context->handle);
    __atomic_fetch_sub(&cb.proc->context_count, 1, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&cb.proc->context_bytes[device], context->bytes, __ATOMIC_RELAXED);
    cb_uncharge(device, context->bytes);
    cb_pools_refresh(device);
}

CUcontext cb_context_primary_ending(int device, bool reset)
{
    CUcontext handle = NULL;
    cb_lock(&contexts_lock);
    const struct cb_context *context = primary_record(device);
    if (context != NULL && (reset || context->retained == 1)) handle = context->handle;
    cb_unlock(&contexts_lock);
    return handle;
}

int cb_context_device(const void *handle)
{
    int device = -1;
    cb_lock(&contexts_lock);
    for (const struct cb_context *context = contexts; context != NULL; context = context->next)
        if (context->kind != CB_CONTEXT_PRIMARY && context->handle == handle) device = context->device;
    cb_unlock(&contexts_lock);
    return device;
}

void cb_context_converted(void *green, CUcontext converted)
{
    cb_lock(&contexts_lock);
    for (struct cb_context *context = contexts; context != NULL; context = context->next) {
        if (context->kind != CB_CONTEXT_GREEN || context->handle != green || converted == NULL) continue;
        context->converted = converted;
        __atomic_fetch_add(&converted_count, 1, __ATOMIC_RELAXED);
        break;
    }
    cb_unlock(&contexts_lock);
}

CUcontext cb_context_home(CUcontext context)
{
    if (CB_LIKELY(__atomic_load_n(&converted_count, __ATOMIC_RELAXED) == 0)) return context;
    cb_lock(&contexts_lock);
    for (const struct cb_context *known = contexts; known != NULL; known = known->next) {
        if (known->converted == NULL || known->converted != context) continue;
        const struct cb_context *primary = primary_record(known->device);
        if (primary != NULL) context = primary->handle;
        break;
    }
    cb_unlock(&contexts_lock);
    return context;
}

static void contexts_after_fork(void)
{
    contexts = NULL;
    converted_count = 0;
    contexts_lock.held = 0;
}
CB_AT_FORK(contexts_after_fork);
