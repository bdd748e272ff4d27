/* A block of warps: its shared memory and its barriers. */
#ifndef CALABASH_SIM_PTX_BLOCK_H
#define CALABASH_SIM_PTX_BLOCK_H

#include "sim/ptx/machine.h"

struct block *block_new(struct run *r);
void block_free(struct block *b);
/* Initialize it as block `number` of the launch; return false without memory. */
bool block_begin(struct block *b, uint64_t number);
/* Run it for a while; return true if it has ended. */
bool block_run(struct block *b);

#endif
