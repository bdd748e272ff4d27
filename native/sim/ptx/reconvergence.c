/*
 * Reconvergence points of branches: the immediate post-dominator of a branch's block.
 *
 * Blocks are numbered in reverse postorder of the reversed graph from a common end, and dominators are found by
 * the iteration of Cooper, Harvey and Kennedy ("A Simple, Fast Dominance Algorithm", 2001). A block that never
 * reaches the end (an endless loop) has none; its lanes stay diverged.
 */
#include "sim/ptx/reconvergence.h"

#include "sim/ptx/compiler.h"
#include "sim/ptx/control.h"
#include "sim/ptx/storage.h"

#include <stdlib.h>
#include <string.h>

#define NONE      UINT32_MAX
#define EDGES_MAX (1u << 24)
#define STEPS_MAX (1ull << 28) /* of the search; a kernel that needs more runs without reconvergence points */

struct graph {
    const struct routine *f;
    uint32_t *block_of;          /* by operation */
    uint32_t *first;             /* of each block; one more at the end */
    uint32_t count;              /* blocks; number `count` is the end */
    uint32_t *into, *into_begin; /* for each block, the blocks that flow to it */
    uint32_t *order, *rank, *join;
    uint32_t reached;
    uint64_t steps;
};

static bool ends_block(const struct op *o)
{
    return o->run == op_branch || o->run == op_branch_table || o->run == op_return || o->run == op_exit;
}

static bool blocks_split(struct graph *g)
{
    const struct routine *f = g->f;
    bool *leader = calloc(f->op_count + 1, sizeof *leader);
    if (!leader) return false;
    leader[0] = true;
    for (uint32_t i = 0; i < f->op_count; i++) {
        const struct op *o = &f->op[i];
        if (o->run == op_branch) leader[o->second] = true;
        for (uint32_t k = 0; o->run == op_branch_table && k < o->list_count; k++)
            leader[f->list[o->list + k]] = true;
        if (ends_block(o)) leader[i + 1] = true;
    }
    for (uint32_t i = 0; i < f->op_count; i++) {
        if (leader[i]) g->first[g->count++] = i;
        g->block_of[i] = g->count - 1;
    }
    g->first[g->count] = f->op_count;
    free(leader);
    return true;
}

/* Successors of a block, up to `capacity`; return their number. */
static uint32_t successors(const struct graph *g, uint32_t b, uint32_t k, uint32_t *out)
{
    const struct op *o = &g->f->op[g->first[b + 1] - 1];
    uint32_t n = 0;
    bool through = !ends_block(o) || o->guard;
    uint32_t next = b + 1; /* the last block continues at the end */
    if (o->run == op_branch && n++ == k) *out = g->block_of[o->second];
    if (o->run == op_branch_table) {
        if (k >= n && k < n + o->list_count) *out = g->block_of[g->f->list[o->list + k - n]];
        n += o->list_count;
    }
    if ((o->run == op_return || o->run == op_exit) && n++ == k) *out = g->count;
    if (through && n++ == k) *out = next;
    return n;
}

static bool blocks_connect(struct graph *g)
{
    uint32_t total = 0, to = 0;
    for (uint32_t b = 0; b < g->count; b++) {
        uint32_t n = successors(g, b, NONE, &to);
        if (n > EDGES_MAX - total) return false;
        total += n;
    }
    g->into_begin = calloc(g->count + 3, sizeof *g->into_begin);
    g->into = calloc(total + 1, sizeof *g->into);
    if (!g->into_begin || !g->into) return false;
    for (uint32_t b = 0; b < g->count; b++) {
        uint32_t n = successors(g, b, NONE, &to);
        for (uint32_t k = 0; k < n; k++) {
            successors(g, b, k, &to);
            g->into_begin[to + 2]++;
        }
    }
    for (uint32_t b = 2; b < g->count + 3; b++)
        g->into_begin[b] += g->into_begin[b - 1];
    for (uint32_t b = 0; b < g->count; b++) {
        uint32_t n = successors(g, b, NONE, &to);
        for (uint32_t k = 0; k < n; k++) {
            successors(g, b, k, &to);
            g->into[g->into_begin[to + 1]++] = b;
        }
    }
    return true;
}

/* Number the blocks in postorder from the end against the direction of the flow, without recursion. */
static bool blocks_number(struct graph *g)
{
    uint32_t *stack = calloc(g->count + 2, sizeof *stack), *at = calloc(g->count + 2, sizeof *at), depth = 0;
    if (!stack || !at) {
        free(stack);
        free(at);
        return false;
    }
    for (uint32_t b = 0; b <= g->count; b++)
        g->rank[b] = NONE;
    stack[depth++] = g->count;
    g->rank[g->count] = 0;
    while (depth) {
        uint32_t b = stack[depth - 1];
        if (at[b] < g->into_begin[b + 1] - g->into_begin[b]) {
            uint32_t p = g->into[g->into_begin[b] + at[b]++];
            if (g->rank[p] != NONE) continue;
            g->rank[p] = 0;
            stack[depth++] = p;
        } else {
            depth--;
            g->order[g->reached] = b;
            g->rank[b] = g->reached++;
        }
    }
    free(stack);
    free(at);
    return true;
}

static uint32_t dominators_intersect(struct graph *g, uint32_t a, uint32_t b)
{
    while (a != b && g->steps < STEPS_MAX) {
        for (; g->rank[a] < g->rank[b]; g->steps++)
            a = g->join[a];
        for (; g->rank[b] < g->rank[a]; g->steps++)
            b = g->join[b];
    }
    return a;
}

static void joins_find(struct graph *g)
{
    for (uint32_t b = 0; b <= g->count; b++)
        g->join[b] = NONE;
    g->join[g->count] = g->count;
    for (bool changed = true; changed && g->steps < STEPS_MAX;) {
        changed = false;
        for (uint32_t i = g->reached - 1; i-- > 0;) {
            uint32_t b = g->order[i], found = NONE, to = 0, n = successors(g, b, NONE, &to);
            for (uint32_t k = 0; k < n; k++) {
                successors(g, b, k, &to);
                g->steps++;
                if (g->rank[to] == NONE || g->join[to] == NONE) continue;
                found = found == NONE ? to : dominators_intersect(g, found, to);
            }
            if (found != g->join[b]) {
                g->join[b] = found;
                changed = true;
            }
        }
    }
}

static void joins_write(const struct graph *g, struct routine *f)
{
    bool known = g->steps < STEPS_MAX;
    for (uint32_t i = 0; i < f->op_count; i++) {
        struct op *o = &f->op[i];
        if (o->run == op_branch) o->target = &f->op[o->second];
        if (o->run != op_branch && o->run != op_branch_table) continue;
        uint32_t b = g->block_of[i], j = g->rank[b] == NONE || !known ? NONE : g->join[b];
        o->join = j == NONE || j == g->count ? NULL : &f->op[g->first[j]];
    }
}

bool flow_finish(struct compiler *c, struct routine *f)
{
    struct graph g = {.f = f};
    uint32_t n = f->op_count + 2;
    if (c->report->error_count) return true; /* branch targets may be missing */
    g.block_of = calloc(n, sizeof *g.block_of);
    g.first = calloc(n, sizeof *g.first);
    g.order = calloc(n, sizeof *g.order);
    g.rank = calloc(n, sizeof *g.rank);
    g.join = calloc(n, sizeof *g.join);
    bool ok = g.block_of && g.first && g.order && g.rank && g.join && blocks_split(&g) &&
              blocks_connect(&g) && blocks_number(&g);
    if (ok) {
        joins_find(&g);
        joins_write(&g, f);
    } else {
        out_of_memory(c);
    }
    free(g.block_of);
    free(g.first);
    free(g.into);
    free(g.into_begin);
    free(g.order);
    free(g.rank);
    free(g.join);
    return ok;
}
