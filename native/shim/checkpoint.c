/*
 * Checkpoints: a process of the slice is taken off its cards, and comes back within the cap.
 *
 * Theory of operation. A program may ask the driver to lock, checkpoint, restore and unlock any process that it can
 * name by its PID; here only those of its own slice. What a checkpointed process holds, the driver has given back,
 * so its charge is taken off the slice's counter and noted in its process slot (parked_units); before it is restored
 * the same is charged again, and without room it stays checkpointed. The process itself does nothing all the while:
 * whoever asks the driver moves its charge, by the same transactions as everything else (charge.h).
 *
 * Who moves a charge is named in the slot, so two that want the same process do not meet; when he dies the next one
 * takes over. `parked` tells how far he was: PARKED and NONE say that all or nothing of it is noted and not charged,
 * MOVING that each device has to be looked at, for which the process' own counters tell what is still charged. What
 * a thread of it is about to reserve does not count as held: it waits in the driver.
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

/* The process slot that `pid` has in this slice, or -1. */
static int own_process(int pid)
{
    return pid > 0 && cb_slot_holds(pid) ? cb_process_find(cb.usage, pid) : -1;
}

static int own_process_or_say(int pid)
{
    int slot = own_process(pid);
    if (slot < 0) cb_say("process %d is none of this slice that uses a GPU, and is left alone", pid);
    return slot;
}

#define PROCESS_OR_RETURN(slot, pid)    \
    CB_ENTER();                         \
    int slot = own_process_or_say(pid); \
    if (slot < 0) return CUDA_ERROR_NOT_PERMITTED

/* ---- who moves the charge ---- */

static bool claim(struct cb_usage_proc *proc)
{
    const uint32_t mine = cb.slot + 1;
    uint32_t holder = 0;
    if (__atomic_compare_exchange_n(&proc->parker, &holder, mine, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return true;
    if (holder == mine || (holder <= CB_PROCS_MAX && cb_process_lives(cb.usage, holder - 1))) return false;
    return __atomic_compare_exchange_n(&proc->parker, &holder, mine, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
}

static void leave(struct cb_usage_proc *proc)
{
    __atomic_store_n(&proc->parker, 0, __ATOMIC_RELEASE);
}

static void set_parked(struct cb_usage_proc *proc, enum parked state)
{
    __atomic_store_n(&proc->parked, (uint32_t)state, __ATOMIC_RELEASE);
}

/* ---- moving it ---- */

/* What a process has charged that the driver has answered for. */
static uint64_t held_by(const struct cb_usage_proc *proc, uint32_t device)
{
    uint64_t used = __atomic_load_n(&proc->share[device].used_bytes, __ATOMIC_ACQUIRE);
    uint64_t reserving = __atomic_load_n(&proc->reserving_bytes[device], __ATOMIC_ACQUIRE);
    return used > reserving ? used - reserving : 0;
}

static uint64_t parked_of(const struct cb_usage_proc *proc, uint32_t device)
{
    return (uint64_t)__atomic_load_n(&proc->parked_units[device], __ATOMIC_ACQUIRE) * CB_CHARGE_UNIT;
}

static void park(struct cb_usage_proc *proc, uint32_t slot)
{
    for (uint32_t device = 0; device < cb.device_count; device++) {
        uint64_t units = held_by(proc, device) / CB_CHARGE_UNIT;
        __atomic_store_n(&proc->parked_units[device], units > UINT32_MAX ? UINT32_MAX : (uint32_t)units,
                         __ATOMIC_RELEASE);
    }
    set_parked(proc, MOVING);
    for (uint32_t device = 0; device < cb.device_count; device++)
        (void)cb_charge_sub(cb.usage, slot, device, parked_of(proc, device));
    set_parked(proc, PARKED);
}

/* Charges again what is noted; `charged` tells how much of it is, on each device. */
static bool take_back(struct cb_usage_proc *proc, uint32_t slot, uint64_t charged[CB_DEVICES_MAX])
{
    bool interrupted = __atomic_exchange_n(&proc->parked, (uint32_t)MOVING, __ATOMIC_ACQ_REL) == MOVING;
    for (uint32_t device = 0; device < cb.device_count; device++) {
        uint64_t wanted = parked_of(proc, device), there = interrupted ? held_by(proc, device) : 0;
        charged[device] = there < wanted ? there : wanted;
    }
    for (uint32_t device = 0; device < cb.device_count; device++) {
        uint64_t missing = parked_of(proc, device) - charged[device];
        if (missing == 0) continue;
        if (!cb_reserve_for(slot, (int)device, missing)) return false;
        charged[device] += missing;
    }
    return true;
}

static void give_again(struct cb_usage_proc *proc, uint32_t slot, const uint64_t charged[CB_DEVICES_MAX])
{
    for (uint32_t device = 0; device < cb.device_count; device++)
        if (charged[device] > 0) (void)cb_charge_sub(cb.usage, slot, device, charged[device]);
    set_parked(proc, PARKED);
}

/* ---- the calls ---- */

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
    if (!claim(proc)) return CUDA_ERROR_NOT_READY;
    uint32_t generation = cb_generation(proc);
    CUresult result = CB_REAL(cuCheckpointProcessCheckpoint)(pid, args);
    if (result == CUDA_SUCCESS && cb_generation(proc) == generation) park(proc, (uint32_t)slot);
    leave(proc);
    return result;
}

/* Whether the restore would put the process on another card: that card would not be the slice's, or its books not. */
static bool moves(const CUcheckpointRestoreArgs *args)
{
    for (unsigned i = 0; args != NULL && args->gpuPairs != NULL && i < args->gpuPairsCount; i++)
        if (memcmp(&args->gpuPairs[i].oldUuid, &args->gpuPairs[i].newUuid, sizeof(CUuuid)) != 0) return true;
    return false;
}

static CUresult restore(struct cb_usage_proc *proc, uint32_t slot, int pid, CUcheckpointRestoreArgs *args)
{
    uint64_t charged[CB_DEVICES_MAX];
    if (__atomic_load_n(&proc->parked, __ATOMIC_ACQUIRE) == NONE)
        return CB_REAL(cuCheckpointProcessRestore)(pid, args);
    bool room = take_back(proc, slot, charged);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (room) CB_CALL_DRIVER(result, CB_REAL(cuCheckpointProcessRestore)(pid, args));
    if (result == CUDA_SUCCESS)
        set_parked(proc, NONE);
    else
        give_again(proc, slot, charged);
    return result;
}

CUresult CUDAAPI cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
    PROCESS_OR_RETURN(slot, pid);
    struct cb_usage_proc *proc = &cb.usage->proc[slot];
    if (moves(args)) {
        cb_say("process %d is to be restored on another card than it was on: a slice does not do that", pid);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (!claim(proc)) return CUDA_ERROR_NOT_READY;
    CUresult result = restore(proc, (uint32_t)slot, pid, args);
    leave(proc);
    return result;
}
