/* What a node is and does, for people. */
#ifndef CALABASH_SIMCTL_SHOW_H
#define CALABASH_SIMCTL_SHOW_H

#include "sim/node/state.h"

/* Bring the books of all cards up to now: work done, dead processes gone. */
void simctl_refresh(struct sim *s);

/* Cards, what is wrong with them, processes, and how much is not served; `all`: which functions and kernels. */
int simctl_show(struct sim *s, int all);
int simctl_unserved(struct sim *s);

#endif
