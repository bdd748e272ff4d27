/*
 * Processes that are taken off their cards for a while.
 *
 * A process that is locked waits at its next call of the driver, once what it had posted is done. Checkpointed, it
 * holds nothing of any card: what it held is remembered beside it, and is taken again when it is restored. Whoever
 * may lock, checkpoint, restore and unlock it does so in the shared state; it need not do anything itself.
 */
#ifndef CALABASH_SIM_CHECKPOINT_H
#define CALABASH_SIM_CHECKPOINT_H

#include "sim/node/gate.h"
#include "sim/node/state.h"

enum sim_answer { SIM_DONE, SIM_WRONG_STATE, SIM_TIMED_OUT, SIM_NO_ROOM };

/* The slot of the process that the caller calls `pid`; -1: no process of the node is. */
int sim_checkpoint_find(struct sim *s, pid_t pid);

/* `timeout_ms` 0: none. After a timeout the process runs on. */
enum sim_answer sim_checkpoint_lock(struct sim *s, uint32_t slot, uint32_t timeout_ms);
enum sim_answer sim_checkpoint_take(struct sim *s, uint32_t slot);
/* All that it held, or nothing: then it stays as it is. */
enum sim_answer sim_checkpoint_restore(struct sim *s, uint32_t slot);
enum sim_answer sim_checkpoint_unlock(struct sim *s, uint32_t slot);

#endif
