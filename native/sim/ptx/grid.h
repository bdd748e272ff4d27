/* All blocks of a launch. */
#ifndef CALABASH_SIM_PTX_GRID_H
#define CALABASH_SIM_PTX_GRID_H

#include "sim/ptx/run.h"

/* Carries a launch out in this thread and in those of the pool; its result. */
/* What a block takes of this machine's memory. */
uint64_t grid_block_bytes(const struct program *p, const struct routine *entry, const struct launch_shape *s);
int grid_run(struct run *r);

#endif
