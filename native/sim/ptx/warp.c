/* Execution, divergence and reconvergence of a warp's fragments (machine.h has the theory). */
#include "sim/ptx/warp.h"

#include "sim/ptx/frame.h"

#include <stdio.h>
#include <string.h>

const struct op *warp_fault(struct warp *w, const struct op *o, int result, const char *what,
                            uint64_t address)
{
    struct run *r = w->block->run;
    int none = RUN_OK;
    if (__atomic_compare_exchange_n(&r->fault, &none, result, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        const uint32_t *at = w->block->ctaid;
        const char *name = w->running ? w->running->frame->function->name : "";
        snprintf(r->failure_text, sizeof r->failure_text,
                 "%.100s: %s 0x%llx, block (%u,%u,%u), line %u of the PTX", name, what,
                 (unsigned long long)address, at[0], at[1], at[2], o ? o->line : 0);
    }
    __atomic_store_n(&r->stop, true, __ATOMIC_RELEASE);
    return NULL;
}

static void fragments_add(struct warp *w, struct fragment *f)
{
    f->next = w->fragments;
    w->fragments = f;
}

static void fragments_remove(struct warp *w, struct fragment *f)
{
    for (struct fragment **p = &w->fragments; *p; p = &(*p)->next) {
        if (*p != f) continue;
        *p = f->next;
        break;
    }
    if (w->running == f) w->running = NULL;
}

/* Continue a parent for which no lane is missing any more, or end it if no lane of it is left. */
static void parent_continue(struct warp *w, struct fragment *p)
{
    if (p->expect) return;
    if (p->called) frame_free(w, p->called);
    p->called = NULL;
    p->state = FRAGMENT_RUNS;
    if (p->mask)
        fragments_add(w, p);
    else
        fragment_free(w, p);
}

/* Let `f` arrive where its parent waits. */
static void fragment_arrive(struct warp *w, struct fragment *f)
{
    struct fragment *p = f->parent;
    p->mask |= f->mask;
    p->expect &= ~f->mask;
    fragments_remove(w, f);
    fragment_free(w, f);
    parent_continue(w, p);
}

const struct op *warp_part(struct warp *w, uint32_t taken, const struct op *target, const struct op *other,
                           const struct op *join)
{
    struct fragment *f = w->running, *g = fragment_new(w);
    struct fragment *p = join && join != f->join ? fragment_new(w) : NULL;
    if (!g || (join && join != f->join && !p)) return warp_fault(w, other, RUN_OUT_OF_MEMORY, "no memory", 0);
    if (p) {
        *p = (struct fragment){.at = join,
                               .join = f->join,
                               .expect = f->mask,
                               .parent = f->parent,
                               .frame = f->frame,
                               .state = FRAGMENT_WAITS,
                               .made_next = p->made_next};
        f->parent = p;
        f->join = join;
    }
    g->parent = f->parent;
    g->join = f->join;
    g->frame = f->frame;
    g->mask = taken;
    g->at = target;
    f->mask &= ~taken;
    f->at = other;
    fragments_add(w, g);
    return NULL;
}

const struct op *warp_call(struct warp *w, uint32_t mask, const struct op *back, struct frame *called)
{
    struct fragment *f = w->running, *g = fragment_new(w);
    if (!g) return warp_fault(w, back, RUN_OUT_OF_MEMORY, "no memory", 0);
    /* The running fragment becomes the parent; lanes that do not call have arrived already. */
    fragments_remove(w, f);
    g->parent = f;
    g->frame = called;
    g->mask = mask;
    g->at = called->function->op;
    f->called = called;
    f->expect = mask;
    f->mask &= ~mask;
    f->state = FRAGMENT_WAITS;
    f->at = back;
    fragments_add(w, g);
    return NULL;
}

/* Remove lanes from their fragment and from all that wait for them, up to `last` (NULL: all). */
static void lanes_withdraw(struct warp *w, struct fragment *f, uint32_t mask, const struct fragment *last)
{
    struct fragment *p = f->parent;
    f->mask &= ~mask;
    if (!f->mask) {
        fragments_remove(w, f);
        fragment_free(w, f);
    }
    while (p && p != last) {
        struct fragment *up = p->parent;
        p->expect &= ~mask;
        parent_continue(w, p);
        p = up;
    }
}

const struct op *warp_return(struct warp *w, uint32_t mask)
{
    struct fragment *f = w->running, *call = f->parent;
    while (call && !call->called)
        call = call->parent;
    if (!call) return warp_exit(w, mask, f->at);
    lanes_withdraw(w, f, mask, call);
    call->mask |= mask;
    call->expect &= ~mask;
    parent_continue(w, call);
    return NULL;
}

const struct op *warp_exit(struct warp *w, uint32_t mask, const struct op *rest)
{
    struct fragment *f = w->running;
    f->at = rest;
    w->alive &= ~mask;
    w->block->threads_alive -= (uint32_t)__builtin_popcount(mask);
    if (w->block->run->shape.cooperative)
        __atomic_add_fetch(&w->block->run->grid_gone, (uint64_t)__builtin_popcount(mask), __ATOMIC_ACQ_REL);
    lanes_withdraw(w, f, mask, NULL);
    return NULL;
}

const struct op *warp_wait(struct warp *w, enum fragment_state state, const struct op *at)
{
    w->running->state = state;
    w->running->at = at;
    return NULL;
}

uint32_t warp_gather(struct warp *w, const struct op *o, uint32_t mask, uint32_t members)
{
    uint32_t here = mask;
    members &= w->alive;
    if (!(members & ~w->running->mask)) return mask;
    for (struct fragment *f = w->fragments; f; f = f->next) {
        if (f != w->running && f->state == FRAGMENT_AT_SYNC && f->at == o && f->frame == w->running->frame)
            here |= f->mask;
    }
    if (members & ~here) {
        warp_wait(w, FRAGMENT_AT_SYNC, o);
        return 0;
    }
    for (struct fragment *f = w->fragments; f; f = f->next) {
        if (f != w->running && f->state == FRAGMENT_AT_SYNC && f->at == o && f->frame == w->running->frame) {
            f->state = FRAGMENT_RUNS;
            f->at = o + 1;
        }
    }
    return here;
}

/* If all remaining fragments wait for lanes that will not come, choose one to continue without them. */
static struct fragment *fragment_stranded(struct warp *w)
{
    struct fragment *first = NULL;
    for (struct fragment *f = w->fragments; f; f = f->next) {
        if (f->state != FRAGMENT_AT_SYNC) return NULL;
        first = f;
    }
    return first;
}

static struct fragment *fragment_choose(struct warp *w, const struct fragment *after)
{
    struct fragment *first = NULL;
    bool passed = false;
    for (struct fragment *f = w->fragments; f; f = f->next) {
        if (f->state == FRAGMENT_RUNS) {
            if (passed) return f;
            if (!first) first = f;
        }
        if (f == after) passed = true;
    }
    return first;
}

void warp_release_waiting(struct warp *w, const struct fragment *f)
{
    for (struct fragment *p = f->parent; p; p = p->parent) {
        struct fragment *g = p->mask ? fragment_new(w) : NULL;
        if (!g) continue;
        g->at = p->at;
        g->join = p->join;
        g->mask = p->mask;
        g->parent = p->parent;
        g->frame = p->frame;
        p->mask = 0;
        fragments_add(w, g);
    }
}

static inline uint32_t guarded_lanes(const struct warp *w, const struct op *o, uint32_t mask)
{
    if (!o->guard) return mask;
    uint32_t p = *(const uint32_t *)(w->base[0] + ((o->guard & ~GUARD_NOT) - 1));
    return mask & (o->guard & GUARD_NOT ? ~p : p);
}

/* Run one fragment until it waits, diverges, ends or its turn is over. */
static void fragment_run(struct warp *w, struct fragment *f)
{
    const struct op *at = f->at, *join = f->join;
    uint32_t active = f->mask, left = WARP_TURN;
    warp_enter(w, f);
    while (at && at != join && left) {
        uint32_t mask = active;
        left--;
        if (at->guard) {
            mask = guarded_lanes(w, at, mask);
            if (!mask) {
                at++;
                continue;
            }
        }
        at = at->run(w, at, mask);
    }
    w->block->ops += WARP_TURN - left;
    w->turn = w->turn > WARP_TURN - left ? w->turn - (WARP_TURN - left) : 0;
    if (!at) return;
    f->at = at;
    if (at == join && join)
        fragment_arrive(w, f);
    else
        warp_release_waiting(w, f); /* what runs for so long may be waiting for them */
}

void warp_run(struct warp *w)
{
    const struct fragment *last = NULL;
    w->turn = 2 * WARP_TURN;
    w->yielded = false;
    while (!__atomic_load_n(&w->block->run->stop, __ATOMIC_RELAXED)) {
        struct fragment *f = fragment_choose(w, last);
        if (!f && (f = fragment_stranded(w))) { /* execute it for the lanes that arrived */
            uint32_t alive = w->alive;
            w->alive = f->mask;
            f->state = FRAGMENT_RUNS;
            warp_enter(w, f);
            uint32_t mask = guarded_lanes(w, f->at, f->mask);
            const struct op *next = mask ? f->at->run(w, f->at, mask) : f->at + 1;
            w->alive = alive;
            if (next) f->at = next;
            continue;
        }
        if (!f) return;
        if (!w->turn) {
            w->yielded = true;
            return;
        }
        last = f;
        fragment_run(w, f);
    }
}
