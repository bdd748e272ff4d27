/* Execution of blocks: warps run in turn until all have ended. */
#include "sim/ptx/block.h"

#include "sim/ptx/barrier.h"
#include "sim/ptx/frame.h"
#include "sim/ptx/warp.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 1024u
#define ROUNDS    16u /* turns of all warps, before another block may run */

static uint32_t round_up(uint32_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

struct block *block_new(struct run *r)
{
    const uint32_t *size = r->shape.block;
    uint32_t warps = (size[0] * size[1] * size[2] + LANES - 1) / LANES;
    struct block *b = calloc(1, sizeof *b + warps * sizeof(struct warp));
    if (!b) return NULL;
    b->run = r;
    b->warp_count = warps;
    b->shared_size[0] = round_up(r->entry->shared_bytes);
    b->shared_size[1] = round_up((uint32_t)r->placed->program->shared_bytes);
    b->shared_size[2] = r->shape.dynamic_shared_bytes;
    b->shared_bytes = b->shared_size[0] + b->shared_size[1] + round_up(b->shared_size[2]);
    b->shared_memory = aligned_alloc(ALIGNMENT, (size_t)b->shared_bytes + ALIGNMENT);
    if (!b->shared_memory) {
        free(b);
        return NULL;
    }
    b->shared[0] = b->shared_memory;
    b->shared[1] = b->shared[0] + b->shared_size[0];
    b->shared[2] = b->shared[1] + b->shared_size[1];
    return b;
}

void block_free(struct block *b)
{
    for (uint32_t i = 0; i < b->warp_count; i++)
        warp_end(&b->warp[i]);
    free(b->shared_memory);
    free(b);
}

bool block_begin(struct block *b, uint64_t number)
{
    const uint32_t *grid = b->run->shape.grid, *size = b->run->shape.block;
    b->number = number;
    b->ctaid[0] = (uint32_t)(number % grid[0]);
    b->ctaid[1] = (uint32_t)(number / grid[0] % grid[1]);
    b->ctaid[2] = (uint32_t)(number / grid[0] / grid[1]);
    b->threads_alive = size[0] * size[1] * size[2];
    memset(b->shared_memory, 0, b->shared_bytes);
    memset(b->barrier, 0, sizeof b->barrier);
    for (uint32_t i = 0; i < b->warp_count; i++) {
        if (!warp_begin(&b->warp[i], b, i, b->run->entry)) return false;
    }
    return true;
}

static bool warp_can_run(const struct warp *w)
{
    bool waits = w->fragments != NULL;
    for (const struct fragment *f = w->fragments; f; f = f->next) {
        if (f->state == FRAGMENT_RUNS) return true;
        if (f->state == FRAGMENT_AT_BARRIER) waits = false;
    }
    return waits; /* all of them for lanes of the warp itself */
}

/* Return true if any warp can run. */
static bool block_can_run(struct block *b)
{
    for (uint32_t i = 0; i < b->warp_count; i++) {
        if (warp_can_run(&b->warp[i])) return true;
    }
    return false;
}

/* Threads that return early must have ended before a barrier that the others reach counts as complete. */
static void block_release_waiting(struct block *b)
{
    for (uint32_t i = 0; i < b->warp_count; i++) {
        struct warp *w = &b->warp[i];
        for (struct fragment *f = w->fragments; f; f = f->next) {
            if (f->state == FRAGMENT_AT_BARRIER) warp_release_waiting(w, f);
        }
    }
}

bool block_run(struct block *b)
{
    uint32_t rounds = 0;
    while (b->threads_alive && !__atomic_load_n(&b->run->stop, __ATOMIC_RELAXED)) {
        bool any = false, yielded = false;
        for (uint32_t i = 0; i < b->warp_count; i++) {
            struct warp *w = &b->warp[i];
            if (!warp_can_run(w)) continue;
            any = true;
            warp_run(w);
            yielded = yielded || w->yielded;
        }
        const struct surroundings *around = b->run->around;
        if (around->cancelled && around->cancelled(around->user))
            __atomic_store_n(&b->run->stop, true, __ATOMIC_RELEASE);
        barrier_check(b);
        if (yielded && ++rounds == ROUNDS) return false;
        if (any || block_can_run(b)) continue;
        block_release_waiting(b);
        if (!block_can_run(b))
            warp_fault(&b->warp[0], NULL, RUN_FAILED, "threads wait at a barrier for others that never come,",
                       0);
    }
    return true;
}
