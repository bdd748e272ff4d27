/*
 * Execution of launches: blocks are distributed to the threads of a pool and to the calling thread. If the
 * warps of a block have run long without an end (they may wait for another block), the next block begins, and
 * blocks run in turn.
 */
#define _GNU_SOURCE
#include "sim/ptx/grid.h"

#include "sim/ptx/block.h"
#include "sim/ptx/thread_pool.h"

#include <sched.h>

#define RESIDENT_MAX   256u         /* blocks begun by one thread, except in a cooperative launch */
#define RESIDENT_BYTES (1ull << 30) /* ...and their memory, beyond the first */
#define WORTH_OPS      4000u        /* a block this small is not worth another thread */

static bool run_is_stopped(const struct run *r)
{
    return __atomic_load_n(&r->stop, __ATOMIC_ACQUIRE);
}

static struct block *next_block_begin(struct run *r, struct block **spare)
{
    uint64_t number = __atomic_fetch_add(&r->next_block, 1, __ATOMIC_RELAXED);
    if (number >= r->block_count) return NULL;
    struct block *b = *spare ? *spare : block_new(r);
    *spare = NULL;
    if (b && block_begin(b, number)) return b;
    int none = RUN_OK;
    __atomic_compare_exchange_n(&r->fault, &none, RUN_OUT_OF_MEMORY, false, __ATOMIC_ACQ_REL,
                                __ATOMIC_ACQUIRE);
    __atomic_store_n(&r->stop, true, __ATOMIC_RELEASE);
    if (b) block_free(b);
    return NULL;
}

static void block_finish(struct run *r, struct block *b, struct block **spare)
{
    __atomic_add_fetch(&r->ops, b->ops, __ATOMIC_RELAXED);
    __atomic_add_fetch(&r->bytes, b->bytes, __ATOMIC_RELAXED);
    __atomic_add_fetch(&r->blocks_done, 1, __ATOMIC_RELEASE);
    b->ops = b->bytes = 0;
    if (*spare)
        block_free(b);
    else
        *spare = b;
}

static void blocks_run(void *argument)
{
    struct run *r = argument;
    struct block *head = NULL, **tail = &head, *spare = NULL;
    uint32_t resident = 0, waiting = 0; /* begun blocks; consecutive ones that have not ended in their turn */
    uint64_t most = RESIDENT_BYTES / (1 + grid_block_bytes(r->placed->program, r->entry, &r->shape));
    if (most > RESIDENT_MAX || r->shape.cooperative) most = r->shape.cooperative ? UINT64_MAX : RESIDENT_MAX;
    while (!run_is_stopped(r)) {
        struct block *b = NULL;
        if (!head || (waiting >= resident && resident < most)) {
            b = next_block_begin(r, &spare);
            if (b) resident++;
        }
        if (!b && (b = head)) {
            head = b->next;
            if (!head) tail = &head;
        }
        if (!b) break;
        b->next = NULL;
        bool ended = block_run(b);
        if (ended) {
            bool worth = b->ops > WORTH_OPS;
            block_finish(r, b, &spare);
            resident--;
            waiting = 0;
            if (worth && __atomic_load_n(&r->next_block, __ATOMIC_RELAXED) < r->block_count)
                thread_pool_request_help(r);
            continue;
        }
        thread_pool_request_help(r);
        *tail = b;
        tail = &b->next;
        if (++waiting > resident) sched_yield();
    }
    while (head) {
        struct block *b = head;
        head = b->next;
        block_free(b);
    }
    if (spare) block_free(spare);
}

uint64_t grid_block_bytes(const struct program *p, const struct routine *entry, const struct launch_shape *s)
{
    uint64_t warps = ((uint64_t)s->block[0] * s->block[1] * s->block[2] + LANES - 1) / LANES;
    return warps * (entry->register_bytes + (uint64_t)LANES * entry->local_bytes) + entry->shared_bytes +
           p->shared_bytes + s->dynamic_shared_bytes;
}

int grid_run(struct run *r)
{
    const uint32_t *g = r->shape.grid;
    r->block_count = (uint64_t)g[0] * g[1] * g[2];
    thread_pool_run(r, blocks_run);
    if (run_is_stopped(r) && r->fault == RUN_OK) r->fault = RUN_FAILED;
    return r->fault;
}
