/* The state of a node, as JSON. */
#ifndef CALABASH_SIMCTL_SHOW_JSON_H
#define CALABASH_SIMCTL_SHOW_JSON_H

#include "sim/node/state.h"

int simctl_show_json(struct sim *s);

#endif
