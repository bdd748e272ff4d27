/* Where the ways of a branch meet again. */
#ifndef CALABASH_SIM_PTX_FLOW_H
#define CALABASH_SIM_PTX_FLOW_H

#include "sim/ptx/compiler.h"

/* Find where the ways of each branch meet again. */
bool flow_finish(struct compiler *c, struct routine *f);

#endif
