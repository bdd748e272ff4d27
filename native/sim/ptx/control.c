/* Handlers of control flow: branches, calls, ends, barriers. */
#include "sim/ptx/control.h"

#include "sim/ptx/barrier.h"
#include "sim/ptx/frame.h"
#include "sim/ptx/lanes.h"
#include "sim/ptx/warp.h"

#include <stdio.h>

const struct op *op_branch(struct warp *w, const struct op *o, u32 mask)
{
    if (mask == w->running->mask) return o->target;
    return warp_part(w, mask, o->target, o + 1, o->join);
}

/* The lanes with the same value as the first run together; the others execute the operation again. */
static u32 lanes_with_first_value(const u32 *value, u32 mask)
{
    u32 r = 0, first = value[FIRST(mask)];
    SET_LANES(mask) r |= value[i] == first ? 1u << i : 0;
    return r;
}

const struct op *op_branch_table(struct warp *w, const struct op *o, u32 mask)
{
    const u32 *index = in(w, o->a);
    u32 which = index[FIRST(mask)], group = lanes_with_first_value(index, mask);
    if (which >= o->list_count) return warp_fault(w, o, RUN_INVALID_PC, "branch beyond its table", which);
    const struct routine *f = w->running->frame->function;
    const struct op *target = f->op + f->list[o->list + which];
    if (group == w->running->mask) return target;
    if (mask != w->running->mask) return warp_part(w, mask, o, o + 1, o->join);
    return warp_part(w, group, target, o, o->join);
}

/* ---- calls: the list has results, then arguments, each as (place, bytes of a register or 0: in local memory) ---- */

static void local_copy(struct warp *w, u32 to, u32 from, u32 bytes, u32 mask)
{
    SET_LANES(mask)
    {
        u8 *lane = w->local + (size_t)i * w->local_capacity;
        memmove(lane + to, lane + from, bytes);
    }
}

static void arguments_pass(struct warp *w, const struct op *o, const struct frame *from,
                           const struct frame *to, u32 mask)
{
    u32 results = o->list_count >> 16, arguments = o->list_count & 0xffff;
    const struct routine *f = to->function;
    const uint32_t *list = from->function->list + o->list + 2 * results;
    for (u32 k = 0; k < arguments && k < f->parameter_count; k++, list += 2) {
        u32 at = to->local_base + f->parameter[k].offset, bytes = f->parameter[k].bytes;
        if (!list[1]) {
            local_copy(w, at, from->local_base + list[0], bytes, mask);
            continue;
        }
        const u8 *value = w->base[list[0] >> 31] + (list[0] & ~CONSTANT);
        u32 n = bytes < list[1] ? bytes : list[1];
        SET_LANES(mask) memcpy(w->local + (size_t)i * w->local_capacity + at, value + i * list[1], n);
    }
}

static void results_pass(struct warp *w, const struct frame *from, struct frame *to, u32 mask)
{
    const struct op *o = from->call;
    const struct routine *f = from->function;
    const uint32_t *list = to->function->list + o->list;
    for (u32 k = 0; k < o->list_count >> 16 && k < f->result_count; k++, list += 2) {
        u32 at = from->local_base + f->result[k].offset, bytes = f->result[k].bytes;
        if (!list[1]) {
            local_copy(w, to->local_base + list[0], at, bytes, mask);
            continue;
        }
        u32 n = bytes < list[1] ? bytes : list[1];
        SET_LANES(mask)
        memcpy(to->registers + list[0] + i * list[1], w->local + (size_t)i * w->local_capacity + at, n);
    }
}

static const struct op *function_call(struct warp *w, const struct op *o, u32 mask, const struct routine *f)
{
    struct frame *from = w->running->frame;
    if (!f->op || f->entry || f->refused) {
        char what[256];
        snprintf(what, sizeof what, "call of '%.120s'%s%.60s", f->name,
                 f->refused ? ", which has what the simulation does not know: " : ", which cannot be called",
                 f->refused ? f->refused : "");
        return warp_fault(w, o, RUN_NOT_SUPPORTED, what, 0);
    }
    struct frame *to = frame_new(w, f, from, o);
    if (!to) return warp_fault(w, o, RUN_FAILED, "stack overflow at depth", from->depth);
    arguments_pass(w, o, from, to, mask);
    return warp_call(w, mask, o + 1, to);
}

const struct op *op_call(struct warp *w, const struct op *o, u32 mask)
{
    const struct routine *f = o->extra;
    return function_call(w, o, mask, f);
}

const struct op *op_call_through(struct warp *w, const struct op *o, u32 mask)
{
    const u64 *address = in(w, o->a);
    u64 first = address[FIRST(mask)];
    const struct program *p = w->block->run->placed->program;
    u32 group = 0;
    SET_LANES(mask) group |= address[i] == first ? 1u << i : 0;
    if (group != mask || mask != w->running->mask) {
        if (group == w->running->mask) return NULL;
        return warp_part(w, group, o, mask == w->running->mask ? o : o + 1, o + 1);
    }
    if (WINDOW(first) != WINDOW(WINDOW_FUNCTION) || (first & WINDOW_MASK) >= p->function_count)
        return warp_fault(w, o, RUN_INVALID_PC, "call of what is no function", first);
    return function_call(w, o, mask, p->function[first & WINDOW_MASK]);
}

const struct op *op_return(struct warp *w, const struct op *o, u32 mask)
{
    struct frame *f = w->running->frame;
    w->running->at = o + 1;
    if (!f->caller) return warp_exit(w, mask, o + 1);
    results_pass(w, f, f->caller, mask);
    return warp_return(w, mask);
}

const struct op *op_exit(struct warp *w, const struct op *o, u32 mask)
{
    return warp_exit(w, mask, o + 1);
}

const struct op *op_trap(struct warp *w, const struct op *o, u32 mask)
{
    (void)mask;
    return warp_fault(w, o, RUN_FAILED, "trap", 0);
}

const struct op *op_break(struct warp *w, const struct op *o, u32 mask)
{
    (void)mask;
    return warp_fault(w, o, RUN_FAILED, "breakpoint without a debugger", 0);
}

/* nanosleep: let other threads run. */
const struct op *op_yield(struct warp *w, const struct op *o, u32 mask)
{
    (void)mask;
    w->turn = 0;
    w->running->at = o + 1;
    return NULL;
}

/* ---- barriers: a the number, b the number of threads (list_count 1), c the predicate of a reduction ---- */

static const struct op *reduction_store(struct warp *w, const struct op *o, u32 mask, const struct barrier *b)
{
    if (o->flag & BARRIER_POPC) {
        u32 *d = out(w, o->d);
        SET_LANES(mask) d[i] = b->last_count;
    } else {
        bool r = o->flag & BARRIER_AND ? b->last_all : b->last_any;
        keep_predicate(w, o->d, r ? FULL : 0, mask);
    }
    return o + 1;
}

const struct op *op_barrier(struct warp *w, const struct op *o, u32 mask)
{
    struct fragment *f = w->running;
    u32 first = FIRST(mask), id = ((const u32 *)in(w, o->a))[first];
    u32 count = o->list_count ? ((const u32 *)in(w, o->b))[first] : 0;
    bool reduces = o->flag & (BARRIER_POPC | BARRIER_AND | BARRIER_OR);
    if (id >= BARRIERS) return warp_fault(w, o, RUN_ILLEGAL_INSTRUCTION, "barrier beyond 15:", id);
    struct barrier *b = &w->block->barrier[id];
    if (f->passed) { /* it has arrived, and so have all others */
        f->passed = false;
        return reduction_store(w, o, mask, b);
    }
    if (reduces) {
        u32 p = predicate(w, o->c);
        if (o->flag & BARRIER_NOT) p = ~p;
        barrier_vote(b, p & mask, mask);
    }
    barrier_arrive(w, id, mask, count);
    if (o->flag & BARRIER_ARRIVE) return o + 1;
    f->barrier = (u8)id;
    if (mask != f->mask) { /* a guard: lanes for which it is false go on */
        warp_part(w, mask, reduces ? o : o + 1, o + 1, NULL);
        f = w->fragments;
        f->barrier = (u8)id;
        f->passed = reduces;
        f->state = FRAGMENT_AT_BARRIER;
        return NULL;
    }
    f->passed = reduces;
    return warp_wait(w, FRAGMENT_AT_BARRIER, reduces ? o : o + 1);
}
