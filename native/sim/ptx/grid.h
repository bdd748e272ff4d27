/* All blocks of a launch. */
#ifndef CALABASH_SIM_PTX_GRID_H
#define CALABASH_SIM_PTX_GRID_H

#include "sim/ptx/run.h"

/* Carries a launch out in this thread and in those of the pool; its result. */
int grid_run(struct run *r);

#endif
