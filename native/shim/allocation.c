/*
 * Reserve, allocate and record one allocation: reserve what the driver will take, call the driver, then either
 * record the pointer in the ledger or return the reservation.
 */
#include "shim/allocation.h"

#include "shim/charge.h"
#include "shim/context_book.h"
#include "shim/device.h"
#include "shim/ledger.h"
#include "shim/real.h"

bool cb_allocation_linear(struct cb_allocation *allocation, uint64_t bytes)
{
    allocation->device = cb_device_charged(cb_device_current());
    allocation->bytes = cb_cost(bytes);
    return cb_reserve_linear(allocation->device, allocation->bytes);
}

bool cb_allocation_begin(struct cb_allocation *allocation, uint64_t bytes)
{
    allocation->device = cb_device_charged(cb_device_current());
    allocation->bytes = cb_cost(bytes);
    return cb_reserve(allocation->device, allocation->bytes);
}

bool cb_allocation_resize(struct cb_allocation *allocation, uint64_t bytes)
{
    uint64_t cost = cb_cost(bytes);
    if (cost == allocation->bytes) return true;
    if (!cb_true_up(allocation->device, allocation->bytes, cost)) return false;
    if (allocation->device >= 0) /* the reservation still under way has changed its size as well */
        __atomic_fetch_add(&cb.proc->reserving_bytes[allocation->device], cost - allocation->bytes,
                           __ATOMIC_RELAXED);
    allocation->bytes = cost;
    return true;
}

void cb_allocation_end(struct cb_allocation *allocation, CUresult result, uint32_t kind, uint64_t key)
{
    if (allocation->device == -1) return;
    if (result != CUDA_SUCCESS) {
        cb_cancel(allocation->device, allocation->bytes);
        return;
    }
    CUcontext context = NULL;
    if (CB_REAL(cuCtxGetCurrent) != NULL) (void)CB_REAL(cuCtxGetCurrent)(&context);
    struct cb_entry entry = {.key = key,
                             .bytes = allocation->bytes,
                             .context = (uint64_t)(uintptr_t)cb_context_home(context),
                             .device = allocation->device,
                             .kind = kind};
    (void)cb_ledger_put(&entry); /* without host memory the charge stays until the process ends */
    cb_commit(allocation->device, allocation->bytes);
}
