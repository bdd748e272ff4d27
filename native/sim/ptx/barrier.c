/*
 * Barriers of a block. Threads are counted as they arrive; a warp whose lanes have all arrived counts as whole,
 * as in the hardware. Threads that have ended are not waited for.
 */
#include "sim/ptx/barrier.h"

void barrier_arrive(struct warp *w, uint32_t id, uint32_t mask, uint32_t count)
{
    struct barrier *b = &w->block->barrier[id % BARRIERS];
    b->arrived += (uint32_t)__builtin_popcount(mask);
    if (count && mask == w->alive) b->arrived += (uint32_t)__builtin_popcount(~mask & ~w->begun);
    b->expected = count;
}

void barrier_vote(struct barrier *b, uint32_t true_lanes, uint32_t mask)
{
    b->true_count += (uint32_t)__builtin_popcount(true_lanes);
    b->false_count += (uint32_t)__builtin_popcount(mask & ~true_lanes);
}

static void barrier_release(struct block *b, uint32_t id)
{
    for (uint32_t i = 0; i < b->warp_count; i++) {
        for (struct fragment *f = b->warp[i].fragments; f; f = f->next) {
            if (f->state == FRAGMENT_AT_BARRIER && f->barrier == id) f->state = FRAGMENT_RUNS;
        }
    }
    struct barrier *a = &b->barrier[id];
    a->arrived = 0;
    a->last_count = a->true_count;
    a->last_any = a->true_count != 0;
    a->last_all = a->false_count == 0;
    a->true_count = a->false_count = 0;
}

void barrier_check(struct block *b)
{
    for (uint32_t id = 0; id < BARRIERS; id++) {
        const struct barrier *a = &b->barrier[id];
        if (a->arrived && a->arrived >= (a->expected ? a->expected : b->threads_alive))
            barrier_release(b, id);
    }
}
