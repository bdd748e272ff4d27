/* Creation and removal of the directory tree of a node's private root. */
#ifndef CALABASH_SIM_CTL_ROOT_TREE_H
#define CALABASH_SIM_CTL_ROOT_TREE_H

#include "sim/node/state.h"

/* Make the tree of node/root_tree.h, or update it, and print its path. On failure the process ends with an error. */
int simctl_root(struct sim *s);

/* Remove the tree beside a state file, if there is one. */
void simctl_remove_root(const char *state);

#endif
