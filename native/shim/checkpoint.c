/*
 * Checkpoints: taking the charge of a process of the slice off its cards, and restoring it within the cap.
 *
 * Theory of operation. A program may ask the driver to lock, checkpoint, restore and unlock any process that it
 * can name by its PID; the shim allows only those of its own slice. The driver has freed what a checkpointed
 * process held, so its charge is removed from the slice's counter and noted in its process slot (parked_units);
 * before the process is restored, the same amount is charged again, and if that fails it stays checkpointed.
 * The checkpointed process itself does nothing: the process that calls the driver moves its charge, by the same
 * transactions as everything else (charge.h).
 *
 * The process that moves a charge is named in the slot, so two processes that want to move the same charge
 * exclude each other; if the mover dies, the next one takes over. `parked` tells how far it got: PARKED and
 * NONE say that all or nothing of the charge is noted and not charged, MOVING that each device must be checked,
 * for which the process's own counters tell what is still charged. What a thread of the checkpointed process is
 * about to reserve does not count as held: it waits in the driver.
 */
#include "shim/base.h"

#include "shim/charge.h"
#include "shim/process.h"
#include "shim/real.h"
#include "shim/slot.h"
#include "shim/start.h"

#include "page/reap.h"

#include <string.h>

enum parked { NONE = 0, MOVING = 1, PARKED = 2 };

/* Process slot of `pid` in this slice, or -1. */
static int member_process_slot(int pid)
{
    return pid > 0 && cb_slot_holds(pid) ? cb_process_find(cb.usage, pid) : -1;
}

static int member_process_slot_or_report(int pid)
{
    int slot = member_process_slot(pid);
    if (slot < 0) cb_say("process %d is not a process of this slice that uses a GPU: nothing was done", pid);
    return slot;
}

#define PROCESS_OR_RETURN(slot, pid)               \
    CB_ENTER();                                    \
    int slot = member_process_slot_or_report(pid); \
    if (slot < 0) return CUDA_ERROR_NOT_PERMITTED

/* ---- exclusive right to move a charge ---- */

static bool mover_claim(struct cb_usage_proc *proc)
{
    const uint32_t mine = cb.slot + 1;
    uint32_t holder = 0;
    if (__atomic_compare_exchange_n(&proc->parker, &holder, mine, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return true;
    if (holder == mine || (holder <= CB_PROCS_MAX && cb_process_lives(cb.usage, holder - 1))) return false;
    return __atomic_compare_exchange_n(&proc->parker, &holder, mine, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
}

static void mover_release(struct cb_usage_proc *proc)
{
    __atomic_store_n(&proc->parker, 0, __ATOMIC_RELEASE);
}

static void parked_state_store(struct cb_usage_proc *proc, enum parked state)
{
    __atomic_store_n(&proc->parked, (uint32_t)state, __ATOMIC_RELEASE);
}

/* ---- moving a charge ---- */

/* Bytes that a process has charged and the driver has granted. */
static uint64_t granted_bytes_of(const struct cb_usage_proc *proc, uint32_t device)
{
    uint64_t used = __atomic_load_n(&proc->share[device].used_bytes, __ATOMIC_ACQUIRE);
    uint64_t reserving = __atomic_load_n(&proc->reserving_bytes[device], __ATOMIC_ACQUIRE);
    return used > reserving ? used - reserving : 0;
}

static uint64_t parked_bytes_of(const struct cb_usage_proc *proc, uint32_t device)
{
    return (uint64_t)__atomic_load_n(&proc->parked_units[device], __ATOMIC_ACQUIRE) * CB_CHARGE_UNIT;
}

static void charge_park(struct cb_usage_proc *proc, uint32_t slot)
{
    for (uint32_t device = 0; device < cb.device_count; device++) {
        uint64_t units = granted_bytes_of(proc, device) / CB_CHARGE_UNIT;
        __atomic_store_n(&proc->parked_units[device], units > UINT32_MAX ? UINT32_MAX : (uint32_t)units,
                         __ATOMIC_RELEASE);
    }
    parked_state_store(proc, MOVING);
    for (uint32_t device = 0; device < cb.device_count; device++)
        (void)cb_charge_sub(cb.usage, slot, device, parked_bytes_of(proc, device));
    parked_state_store(proc, PARKED);
}

/* Charge again what is noted; `charged` receives the amount done on each device. */
static bool charge_unpark(struct cb_usage_proc *proc, uint32_t slot, uint64_t charged[CB_DEVICES_MAX])
{
    bool interrupted = __atomic_exchange_n(&proc->parked, (uint32_t)MOVING, __ATOMIC_ACQ_REL) == MOVING;
    for (uint32_t device = 0; device < cb.device_count; device++) {
        uint64_t wanted = parked_bytes_of(proc, device),
                 there = interrupted ? granted_bytes_of(proc, device) : 0;
        charged[device] = there < wanted ? there : wanted;
    }
    for (uint32_t device = 0; device < cb.device_count; device++) {
        uint64_t missing = parked_bytes_of(proc, device) - charged[device];
        if (missing == 0) continue;
        if (!cb_reserve_for(slot, (int)device, missing)) return false;
        charged[device] += missing;
    }
    return true;
}

static void charge_unpark_undo(struct cb_usage_proc *proc, uint32_t slot,
                               const uint64_t charged[CB_DEVICES_MAX])
{
    for (uint32_t device = 0; device < cb.device_count; device++)
        if (charged[device] > 0) (void)cb_charge_sub(cb.usage, slot, device, charged[device]);
    parked_state_store(proc, PARKED);
}

/* ---- the intercepted calls ---- */

CUresult CUDAAPI cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
    PROCESS_OR_RETURN(slot, pid);
    return CB_REAL(cuCheckpointProcessGetRestoreThreadId)(pid, tid);
}

CUresult CUDAAPI cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
    PROCESS_OR_RETURN(slot, pid);
    return CB_REAL(cuCheckpointProcessGetState)(pid, state);
}

CUresult CUDAAPI cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
    PROCESS_OR_RETURN(slot, pid);
    return CB_REAL(cuCheckpointProcessLock)(pid, args);
}

CUresult CUDAAPI cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
    PROCESS_OR_RETURN(slot, pid);
    return CB_REAL(cuCheckpointProcessUnlock)(pid, args);
}

CUresult CUDAAPI cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
    PROCESS_OR_RETURN(slot, pid);
    struct cb_usage_proc *proc = &cb.usage->proc[slot];
    if (!mover_claim(proc)) return CUDA_ERROR_NOT_READY;
    uint32_t generation = cb_proc_generation(proc);
    CUresult result = CB_REAL(cuCheckpointProcessCheckpoint)(pid, args);
    if (result == CUDA_SUCCESS && cb_proc_generation(proc) == generation) charge_park(proc, (uint32_t)slot);
    mover_release(proc);
    return result;
}

/*
 * Return true if the restore would move the process to another card: that card need not be in the slice, and
 * its counters are others.
 */
static bool restore_changes_card(const CUcheckpointRestoreArgs *args)
{
    for (unsigned i = 0; args != NULL && args->gpuPairs != NULL && i < args->gpuPairsCount; i++)
        if (memcmp(&args->gpuPairs[i].oldUuid, &args->gpuPairs[i].newUuid, sizeof(CUuuid)) != 0) return true;
    return false;
}

static CUresult process_restore(struct cb_usage_proc *proc, uint32_t slot, int pid,
                                CUcheckpointRestoreArgs *args)
{
    uint64_t charged[CB_DEVICES_MAX];
    if (__atomic_load_n(&proc->parked, __ATOMIC_ACQUIRE) == NONE)
        return CB_REAL(cuCheckpointProcessRestore)(pid, args);
    bool capacity = charge_unpark(proc, slot, charged);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (capacity) CB_CALL_DRIVER(result, CB_REAL(cuCheckpointProcessRestore)(pid, args));
    if (result == CUDA_SUCCESS)
        parked_state_store(proc, NONE);
    else
        charge_unpark_undo(proc, slot, charged);
    return result;
}

CUresult CUDAAPI cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
    PROCESS_OR_RETURN(slot, pid);
    struct cb_usage_proc *proc = &cb.usage->proc[slot];
    if (restore_changes_card(args)) {
        cb_say("cannot restore process %d on another card; hint: a slice restores a process on the card that "
               "it was on",
               pid);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (!mover_claim(proc)) return CUDA_ERROR_NOT_READY;
    CUresult result = process_restore(proc, (uint32_t)slot, pid, args);
    mover_release(proc);
    return result;
}
