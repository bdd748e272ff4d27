/* Execution of all blocks of a launch. */
#ifndef CALABASH_SIM_PTX_GRID_H
#define CALABASH_SIM_PTX_GRID_H

#include "sim/ptx/run.h"

/* Execute a launch in this thread and in those of the pool; return its result. */
/* Memory of this machine that a block needs. */
uint64_t grid_block_bytes(const struct program *p, const struct routine *entry, const struct launch_shape *s);
int grid_run(struct run *r);

#endif
