/*
 * The discrete-event server of engine.h.
 *
 * Theory of operation. An update of a card copies the heads of a line's queues into lanes, serves the lanes
 * from the time of the last update to the present, and writes back what was completed. The same loop, without
 * writing, predicts when an entry will be complete if nothing else is posted; a waiting thread sleeps until
 * then and updates again.
 *
 * A lane is ready when its head was posted and its predecessor is complete. The current lane runs until its
 * head ends or its time slice is over while another lane is ready; then the next ready lane in order of
 * creation gets a slice. A lane that is alone renews its slice, so a new lane waits for the rest of the running
 * slice, as on a real card.
 *
 * If a context has work in several streams, its kernels may run side by side: engine_side.h.
 *
 * The lanes of one process that has green contexts are a group in the same way.
 *
 * The lanes of one MPS server's clients are a group: to all others they are one lane, and among themselves
 * those that are ready run at once, each as fast as its share of the multiprocessors, or less if the shares of
 * those that are ready exceed the card.
 */
#include "sim/node/engine.h"

#include "sim/node/engine_run.h"
#include "sim/node/engine_side.h"
#include "sim/node/managed.h"
#include "sim/node/mig.h"
#include "sim/node/mps.h"

#include <string.h>

/* a waiting thread updates at least this often: other processes come, go and die */
#define HORIZON_NS 50000000ull

/* Group the contexts of a process that has green ones: they run at once, each on its multiprocessors. */
static void group_green_contexts(struct run *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        const struct lane *green = &r->lane[i];
        if (!green->green || green->group) continue;
        for (uint32_t k = 0; k < r->count; k++) {
            if (r->lane[k].queue->proc == green->queue->proc)
                r->lane[k].group = 1 + SIM_PROCS_MAX + green->queue->proc;
        }
    }
}

static void run_load(struct run *r, struct sim *s, uint32_t device, uint32_t line, bool commit)
{
    struct sim_device *d = &s->node->device[device];
    const struct sim_line *e = &d->engine.line[line % SIM_LINES_MAX];
    r->sim = s;
    r->device = d;
    r->share = r->shares = 1;
    r->gi_share = 0;
    if (line > 0 && d->profile.sm_count > 0) {
        r->share = sim_ci_sm_count(d, &d->mig.ci[(line - 1) % SIM_CI_MAX]);
        r->shares = d->profile.sm_count;
        r->gi = d->mig.ci[(line - 1) % SIM_CI_MAX].gi_id % SIM_GI_MAX;
        r->gi_share = d->mig.gi[r->gi].sm_count;
    }
    r->commit = commit;
    r->time_ns = e->time_ns;
    r->slice_end_ns = e->slice_end_ns;
    r->current = e->current;
    r->count = e->active_count;
    r->target = NULL;
    r->target_number = r->target_end_ns = 0;
    bool greens = false;
    for (uint32_t i = 0; i < r->count; i++) {
        struct sim_queue *q = &s->node->queue[e->active[i] % SIM_QUEUES_MAX];
        r->lane[i] = (struct lane){.queue = q,
                                   .head = q->done,
                                   .posted = __atomic_load_n(&q->posted, __ATOMIC_ACQUIRE),
                                   .left_ns = q->head_left_ns,
                                   .last_end_ns = q->last_end_ns,
                                   .loose = q->loose,
                                   .started = q->started};
        r->lane[i].group = sim_mps_group(s->node, q->proc, RATE_ONE, &r->lane[i].share);
        r->lane[i].green = q->share != 0;
        if (q->share && q->share < r->lane[i].share) r->lane[i].share = q->share;
        greens = greens || q->share;
    }
    if (greens) group_green_contexts(r);
}

static void entry_complete(struct run *r, struct lane *l, uint64_t end_ns)
{
    if (r->commit) {
        ENTRY(l->queue, l->head)->end_ns = end_ns;
        __atomic_store_n(&ENTRY(l->queue, l->head)->phase, SIM_PHASE_DONE, __ATOMIC_RELEASE);
        l->queue->last_end_ns = end_ns;
        l->queue->started = 0;
        l->queue->head_left_ns = 0;
        __atomic_store_n(&l->queue->done, l->head + 1, __ATOMIC_RELEASE);
    }
    if (l->queue == r->target && l->head == r->target_number) r->target_end_ns = max64(end_ns, 1);
    l->last_end_ns = end_ns;
    l->started = 0;
    l->left_ns = 0;
    l->head++;
}

/*
 * Complete the copies and delays at the head of a lane; they wait for no other lane. Return the time at which
 * its head becomes ready for the card, or UINT64_MAX if there is none (yet).
 */
static uint64_t lane_settle(struct run *r, struct lane *l, uint64_t now_ns)
{
    while (l->head < l->posted) {
        struct sim_entry *e = ENTRY(l->queue, l->head);
        uint64_t ready = max64(e->posted_ns, l->last_end_ns);
        if (e->kind == SIM_WORK_KERNEL) return l->started ? 0 : ready;
        if (ready > now_ns) return UINT64_MAX;
        uint64_t end = ready + run_duration(r, l, l->head, ready);
        if (end > now_ns) return UINT64_MAX;
        if (r->commit) {
            e->start_ns = ready;
            if (e->kind == SIM_WORK_COPY) run_account(r, l, ready, end, true);
        }
        entry_complete(r, l, end);
    }
    return UINT64_MAX;
}

static struct choice lane_choose(struct run *r, uint64_t now_ns)
{
    struct choice c = {.lane = r->count, .ready_ns = UINT64_MAX};
    bool current_ready = false;
    uint32_t holder = r->current; /* of the slice: the current lane, or one that runs with it */
    for (uint32_t k = 0; k < r->count; k++) {
        uint32_t i = r->current + k < r->count ? r->current + k : r->current + k - r->count;
        uint64_t ready = r->commit && side_is_loose(&r->lane[i]) ? side_settle(r, &r->lane[i], now_ns)
                                                                 : lane_settle(r, &r->lane[i], now_ns);
        r->lane[i].ready = ready <= r->time_ns;
        if (ready > r->time_ns) {
            c.ready_ns = min64(c.ready_ns, ready);
            continue;
        }
        if (k == 0 || run_together(&r->lane[r->current], &r->lane[i])) {
            if (!current_ready) holder = i;
            current_ready = true;
        } else if (c.lane == r->count) {
            c.lane = i;
        } else {
            c.contended = true;
        }
    }
    bool another = c.lane != r->count;
    if (current_ready && (!another || r->time_ns < r->slice_end_ns)) {
        c.lane = holder;
        c.contended = another;
    } else if (current_ready) {
        c.contended = true;
    }
    return c;
}

static void entry_begin(struct run *r, struct lane *l)
{
    struct sim_entry *e = ENTRY(l->queue, l->head);
    if (l->started) return;
    l->started = 1;
    l->left_ns = run_duration(r, l, l->head, r->time_ns);
    if (r->commit) {
        e->start_ns = r->time_ns;
        r->device->engine.kernel_count++;
    }
}

/*
 * Set the speed of each ready lane of a group: contexts of one client divide its share, and all together have
 * one card.
 */
static void group_set_rates(struct run *r, const struct lane *of)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        struct lane *l = &r->lane[i];
        uint32_t siblings = 0;
        if (!l->ready || !run_together(l, of)) continue;
        for (uint32_t k = 0; k < r->count; k++)
            siblings += r->lane[k].ready && !r->lane[k].green && r->lane[k].queue->proc == l->queue->proc;
        if (l->green) siblings = 1;
        l->rate = l->share / siblings ? l->share / siblings : 1;
        sum += l->rate;
    }
    for (uint32_t i = 0; i < r->count && sum > RATE_ONE; i++) {
        struct lane *l = &r->lane[i];
        if (l->ready && run_together(l, of)) l->rate = (uint32_t)max64((uint64_t)l->rate * RATE_ONE / sum, 1);
    }
}

/*
 * Give the card to all ready lanes of the chosen one's group until one of their heads ends, another lane
 * becomes ready, their slice is over, or the present.
 */
static void group_occupy(struct run *r, const struct choice *c, uint64_t now_ns)
{
    const struct lane *of = &r->lane[c->lane];
    uint64_t until = min64(now_ns, c->ready_ns);
    run_take_turn(r, c->lane);
    if (c->contended) until = min64(until, r->slice_end_ns);
    group_set_rates(r, of);
    for (uint32_t i = 0; i < r->count; i++) {
        struct lane *l = &r->lane[i];
        if (!l->ready || !run_together(l, of)) continue;
        entry_begin(r, l);
        until = min64(until, r->time_ns + (l->left_ns * RATE_ONE + l->rate - 1) / l->rate);
    }
    uint64_t from = r->time_ns;
    if (r->commit) run_account_card(r, from, until, false);
    r->time_ns = until;
    run_renew_turn(r, c, until);
    for (uint32_t i = 0; i < r->count; i++) {
        struct lane *l = &r->lane[i];
        if (!l->ready || !run_together(l, of)) continue;
        uint64_t progress = ((until - from) * l->rate + RATE_ONE - 1) / RATE_ONE;
        if (r->commit) run_account_process(r, l, from, until, false, l->rate);
        l->left_ns -= min64(progress, l->left_ns);
        if (l->left_ns == 0) entry_complete(r, l, until);
    }
}

/* Give the chosen lane the card until its head ends, its slice is over, or the present. */
static void lane_occupy(struct run *r, const struct choice *c, uint64_t now_ns)
{
    struct lane *l = &r->lane[c->lane];
    run_take_turn(r, c->lane);
    entry_begin(r, l);
    uint64_t until = min64(now_ns, r->time_ns + l->left_ns);
    if (c->contended)
        until = min64(until, r->slice_end_ns);
    else if (c->ready_ns < until)
        until = max64(c->ready_ns, min64(until, r->slice_end_ns));
    if (r->commit) run_account(r, l, r->time_ns, until, false);
    l->left_ns -= until - r->time_ns;
    r->time_ns = until;
    run_renew_turn(r, c, until);
    if (l->left_ns == 0) entry_complete(r, l, until);
}

/* Serve up to `now_ns`, or until the target is complete. */
static void run_serve(struct run *r, uint64_t now_ns)
{
    for (;;) {
        struct choice c = lane_choose(r, now_ns);
        if (r->target_end_ns || r->time_ns >= now_ns) return;
        if (c.lane == r->count)
            r->time_ns = min64(now_ns, c.ready_ns);
        else if (side_is_loose(&r->lane[c.lane]))
            side_occupy(r, &c, now_ns);
        else if (r->lane[c.lane].group)
            group_occupy(r, &c, now_ns);
        else
            lane_occupy(r, &c, now_ns);
    }
}

/* Too large for the stack of a thread of the program. */
static __thread struct run scratch;

void engine_advance(struct sim *s, uint32_t device, uint32_t line, uint64_t now_ns)
{
    struct sim_line *e = &s->node->device[device].engine.line[line % SIM_LINES_MAX];
    if (now_ns <= e->time_ns) return;
    if (e->active_count == 0) {
        e->time_ns = now_ns;
        return;
    }
    run_load(&scratch, s, device, line, true);
    run_serve(&scratch, now_ns);
    for (uint32_t i = 0; i < scratch.count; i++) {
        struct lane *l = &scratch.lane[i];
        l->queue->head_left_ns = l->left_ns;
        l->queue->started = l->started;
    }
    e->time_ns = scratch.time_ns;
    e->slice_end_ns = scratch.slice_end_ns;
    e->current = scratch.current;
}

void engine_advance_all(struct sim *s, uint32_t device, uint64_t now_ns)
{
    for (uint32_t line = 0; line < SIM_LINES_MAX; line++)
        engine_advance(s, device, line, now_ns);
}

uint64_t engine_predict(struct sim *s, uint32_t device, const struct sim_queue *q, uint64_t number)
{
    run_load(&scratch, s, device, q->line, false);
    uint64_t horizon = scratch.time_ns + HORIZON_NS;
    for (uint32_t i = 0; i < scratch.count; i++)
        if (side_is_loose(&scratch.lane[i])) return min64(horizon, scratch.time_ns + side_least(q, number));
    scratch.target = q;
    scratch.target_number = number;
    run_serve(&scratch, horizon);
    return scratch.target_end_ns ? min64(scratch.target_end_ns, horizon) : horizon;
}

void engine_drop(struct sim *s, uint32_t index)
{
    struct sim_queue *q = &s->node->queue[index];
    uint32_t device = q->device % SIM_DEVICES_MAX;
    struct sim_line *e = &s->node->device[device].engine.line[q->line % SIM_LINES_MAX];
    sim_lock_device(s, device);
    for (uint32_t i = 0; i < e->active_count; i++) {
        if (e->active[i] != index) continue;
        memmove(&e->active[i], &e->active[i + 1], (e->active_count - i - 1) * sizeof e->active[0]);
        e->active_count--;
        if (e->current > i)
            e->current--;
        else if (e->current == i)
            e->slice_end_ns = e->time_ns;
        if (e->current >= e->active_count) e->current = 0;
        break;
    }
    sim_unlock_device(s, device);
    q->state = SIM_SLOT_FREE;
}

void engine_drop_process(struct sim *s, uint32_t slot)
{
    for (uint32_t i = 0; i < sim_queues_used(s->node); i++) {
        const struct sim_queue *q = &s->node->queue[i];
        if (q->state == SIM_SLOT_LIVE && q->proc == slot) engine_drop(s, i);
    }
}
