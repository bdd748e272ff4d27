/* Process slots of a node. */
#ifndef CALABASH_SIM_SLOT_H
#define CALABASH_SIM_SLOT_H

#include "sim/node/state.h"

/* Take a slot for this process. Return 0, or -EAGAIN if all are in use. */
int sim_attach(struct sim *s);

/* Free the slot with everything charged to it. */
void sim_detach(struct sim *s);

/* In a forked child: drop the parent's slot without releasing it (closes the inherited descriptor). */
void sim_detach_after_fork(struct sim *s);

/*
 * Free the slots of dead processes; return their number. `at_most_every_ns` bounds how often the check really
 * runs (0: always). Takes the node's lock: call it without any device lock.
 */
int sim_sweep(struct sim *s, uint64_t at_most_every_ns);

/* PID of the process in `slot` as the caller's namespace numbers it; 0 when it is not visible there. */
pid_t sim_process_pid(struct sim *s, uint32_t slot);

#endif
