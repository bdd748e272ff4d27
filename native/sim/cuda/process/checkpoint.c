/*
 * Driver calls of checkpoints: they lock a process, remove it from its cards, restore it, and unlock it.
 *
 * The contents of its memory stay in its own address space, so nothing is copied. The process is given by its
 * PID in the caller's namespace; it must belong to the caller's user, unless that is root.
 */
#include "sim/node/checkpoint.h"

#include "sim/cuda/process/call.h"
#include "sim/cuda/process/process.h"

#include <unistd.h>

static bool is_zero(const void *bytes, size_t count)
{
    const unsigned char *b = bytes;
    for (size_t i = 0; i < count; i++) {
        if (b[i]) return false;
    }
    return true;
}

/* Slot of the process with this PID. */
static CUresult process_find(int pid, uint32_t *slot)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    int found = sim_checkpoint_find(&process.sim, pid);
    if (found < 0) return CUDA_ERROR_INVALID_VALUE;
    const struct sim_proc *p = &process.sim.node->proc[found];
    if (getuid() != 0 && p->uid != (uint32_t)getuid()) return CUDA_ERROR_NOT_PERMITTED;
    *slot = (uint32_t)found;
    return p->mps.role == SIM_MPS_NONE ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult answer_to_result(enum sim_answer answer)
{
    switch (answer) {
    case SIM_DONE:
        return CUDA_SUCCESS;
    case SIM_TIMED_OUT:
        return CUDA_ERROR_NOT_READY;
    case SIM_NO_ROOM:
        return CUDA_ERROR_OUT_OF_MEMORY;
    default:
        return CUDA_ERROR_ILLEGAL_STATE;
    }
}

EXPORT CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
    uint32_t slot;
    if (!state) return CUDA_ERROR_INVALID_VALUE;
    OK_OR_RETURN(process_find(pid, &slot));
    *state = (CUprocessState)sim_gate_state(&process.sim, slot);
    return CUDA_SUCCESS;
}

/* The driver has no thread of its own: the process itself has nothing to do. */
EXPORT CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
    uint32_t slot;
    if (!tid) return CUDA_ERROR_INVALID_VALUE;
    OK_OR_RETURN(process_find(pid, &slot));
    *tid = pid;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
    uint32_t slot;
    OK_OR_RETURN(process_find(pid, &slot));
    if (args && (args->reserved0 || !is_zero(args->reserved1, sizeof args->reserved1)))
        return CUDA_ERROR_INVALID_VALUE;
    return answer_to_result(sim_checkpoint_lock(&process.sim, slot, args ? args->timeoutMs : 0));
}

EXPORT CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
    uint32_t slot;
    OK_OR_RETURN(process_find(pid, &slot));
    if (args && !is_zero(args, sizeof *args)) return CUDA_ERROR_INVALID_VALUE;
    return answer_to_result(sim_checkpoint_take(&process.sim, slot));
}

/*
 * Check the card pairs: every card of the process must be named and stay the same; migration to another card is
 * not supported.
 */
static CUresult card_pairs_check(const struct sim_proc *p, const CUcheckpointRestoreArgs *args)
{
    const struct sim_node *n = process.sim.node;
    if (!args->gpuPairs) return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < n->device_count; i++) {
        if (p->device[i].parked_context_count == 0) continue;
        const CUcheckpointGpuPair *found = NULL;
        for (unsigned int k = 0; k < args->gpuPairsCount; k++) {
            if (memcmp(args->gpuPairs[k].oldUuid.bytes, n->device[i].profile.uuid_bytes, 16) == 0)
                found = &args->gpuPairs[k];
        }
        if (!found) return CUDA_ERROR_INVALID_VALUE;
        if (memcmp(found->oldUuid.bytes, found->newUuid.bytes, 16) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
    uint32_t slot;
    OK_OR_RETURN(process_find(pid, &slot));
    if (args && (!is_zero(args->reserved, sizeof args->reserved) || args->reserved1))
        return CUDA_ERROR_INVALID_VALUE;
    if (args && args->gpuPairsCount) OK_OR_RETURN(card_pairs_check(&process.sim.node->proc[slot], args));
    return answer_to_result(sim_checkpoint_restore(&process.sim, slot));
}

EXPORT CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
    uint32_t slot;
    OK_OR_RETURN(process_find(pid, &slot));
    if (args && !is_zero(args, sizeof *args)) return CUDA_ERROR_INVALID_VALUE;
    return answer_to_result(sim_checkpoint_unlock(&process.sim, slot));
}
