/* The state of a node, as a table. */
#ifndef CALABASH_SIMCTL_SHOW_H
#define CALABASH_SIMCTL_SHOW_H

#include "sim/node/state.h"

/* Update all cards to the present: completed work, dead processes. */
void simctl_refresh(struct sim *s);

/*
 * Print cards, their faults, processes, and the number of unimplemented functions and unknown kernels; `all`:
 * list them.
 */
int simctl_show(struct sim *s, int all);
int simctl_unserved(struct sim *s);

#endif
