/* Making and removing the tree of a node's own root. */
#ifndef CALABASH_SIMCTL_ROOT_H
#define CALABASH_SIMCTL_ROOT_H

#include "sim/node/state.h"

/* Make the tree of node/root.h, or bring it up to now, and say where it is. Ends with an error when it cannot
 * be. */
int simctl_root(struct sim *s);

/* Remove the tree beside a state file, if there is one. */
void simctl_remove_root(const char *state);

#endif
