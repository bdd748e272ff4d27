/* Reconvergence points of branches. */
#ifndef CALABASH_SIM_PTX_RECONVERGENCE_H
#define CALABASH_SIM_PTX_RECONVERGENCE_H

#include "sim/ptx/compiler.h"

/* Find the reconvergence point of each branch of a function. */
bool flow_finish(struct compiler *c, struct routine *f);

#endif
