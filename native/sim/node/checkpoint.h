/*
 * Checkpoints: processes that are removed from their cards for a while.
 *
 * A locked process waits at its next driver call, once its posted work is done. A checkpointed process holds
 * nothing of any card: the amounts are recorded in its slot and charged again when it is restored. Another
 * process locks, checkpoints, restores and unlocks it in the shared state; the process itself need not do
 * anything.
 */
#ifndef CALABASH_SIM_CHECKPOINT_H
#define CALABASH_SIM_CHECKPOINT_H

#include "sim/node/process_gate.h"
#include "sim/node/state.h"

enum sim_answer { SIM_DONE, SIM_WRONG_STATE, SIM_TIMED_OUT, SIM_NO_ROOM };

/* Slot of the process with this PID in the caller's namespace; -1: not a process of the node. */
int sim_checkpoint_find(struct sim *s, pid_t pid);

/* `timeout_ms` 0: no limit. After a timeout the process runs on. */
enum sim_answer sim_checkpoint_lock(struct sim *s, uint32_t slot, uint32_t timeout_ms);
enum sim_answer sim_checkpoint_take(struct sim *s, uint32_t slot);
/* Restore all of its charges; if one fails, it stays checkpointed. */
enum sim_answer sim_checkpoint_restore(struct sim *s, uint32_t slot);
enum sim_answer sim_checkpoint_unlock(struct sim *s, uint32_t slot);

#endif
