/* Barriers of a block. */
#ifndef CALABASH_SIM_PTX_BARRIER_H
#define CALABASH_SIM_PTX_BARRIER_H

#include "sim/ptx/machine.h"

/* Lanes of the running fragment come to a barrier; `count` threads are expected, 0: all of the block. */
void barrier_arrive(struct warp *w, uint32_t id, uint32_t mask, uint32_t count);
/* What lanes say to a barrier with a result, before they come to it. */
void barrier_vote(struct barrier *b, uint32_t true_lanes, uint32_t mask);
/* Let those go on for whom everybody has come. */
void barrier_check(struct block *b);

#endif
