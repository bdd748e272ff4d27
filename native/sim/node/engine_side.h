/*
 * Concurrent kernels of one context.
 *
 * An entry of a queue follows one or two others, those before it in its stream and what that stream waits for.
 * As long as each entry of a queue follows the one before it they are served one by one. A lane is *loose*
 * while its queue holds an entry that does not: then all kernels whose predecessors are complete run at once,
 * in the order of issue, each on as many multiprocessors as it has blocks, until the card is full. The last one
 * may get fewer than it needs and runs slower. The context occupies the card all that time, whatever part of it
 * is used: its process is charged for all of it.
 *
 * Members of a group (MPS, green contexts) are served one by one each.
 */
#ifndef CALABASH_SIM_ENGINE_SIDE_H
#define CALABASH_SIM_ENGINE_SIDE_H

#include "sim/node/engine_run.h"

static inline bool side_is_loose(const struct lane *l)
{
    return l->group == 0 && l->loose > l->head + 1;
}

/*
 * Complete the copies and delays of a lane; return the time at which it becomes ready for the card, UINT64_MAX:
 * never yet.
 */
uint64_t side_settle(struct run *r, struct lane *l, uint64_t now_ns);

/*
 * Give the chosen lane the card until one of its kernels ends or another may begin, its slice is over, or the
 * present.
 */
void side_occupy(struct run *r, const struct choice *c, uint64_t now_ns);

/* Least time until an entry can be complete. */
uint64_t side_least(const struct sim_queue *q, uint64_t number);

#endif
