/*
 * The gate of a process: every driver call waits there while the process is locked. Another process locks it,
 * see checkpoint.h.
 */
#ifndef CALABASH_SIM_NODE_PROCESS_GATE_H
#define CALABASH_SIM_NODE_PROCESS_GATE_H

#include "sim/node/state.h"

/* Numbered as by the driver. */
enum sim_run { SIM_RUNNING = 0, SIM_LOCKED = 1, SIM_CHECKPOINTED = 2 };

enum sim_run sim_gate_state(const struct sim *s, uint32_t slot);
/* Return false if the process is not in state `from`. */
bool sim_gate_change(struct sim *s, uint32_t slot, enum sim_run from, enum sim_run to);
void sim_gate_wait(struct sim *s);

static inline void sim_gate(struct sim *s)
{
    if (__atomic_load_n(&s->node->proc[s->slot].run, __ATOMIC_ACQUIRE) != SIM_RUNNING) sim_gate_wait(s);
}

#endif
