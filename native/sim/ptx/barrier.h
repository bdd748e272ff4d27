/* Barriers of a block. */
#ifndef CALABASH_SIM_PTX_BARRIER_H
#define CALABASH_SIM_PTX_BARRIER_H

#include "sim/ptx/machine.h"

/* Let lanes of the running fragment arrive at a barrier; `count` threads are expected, 0: all of the block. */
void barrier_arrive(struct warp *w, uint32_t id, uint32_t mask, uint32_t count);
/* Note the predicate of lanes at a barrier with a reduction, before they arrive. */
void barrier_vote(struct barrier *b, uint32_t true_lanes, uint32_t mask);
/* Release the threads at complete barriers. */
void barrier_check(struct block *b);

#endif
