/* Kernels of one context that run side by side; engine_side.h has the theory. */
#include "sim/node/engine_side.h"

#include "sim/node/mig.h"

#define SIDE_MAX        128u   /* kernels that a card runs at once */
#define LEAST_UPDATE_NS 50000u /* least time between two updates of a waiting thread */

/* Time at which an entry may begin; UINT64_MAX: a predecessor is not complete. */
static uint64_t entry_ready_ns(const struct lane *l, uint64_t number)
{
    const struct sim_entry *e = ENTRY(l->queue, number);
    uint64_t ready = e->posted_ns;
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t before = e->after[i];
        if (before == 0 || before - 1 + SIM_QUEUE_ENTRIES < l->posted) continue; /* long ago */
        const struct sim_entry *b = ENTRY(l->queue, before - 1);
        if (b->phase != SIM_PHASE_DONE) return UINT64_MAX;
        ready = max64(ready, b->end_ns);
    }
    for (uint64_t n = l->head; e->follows_all && n < number; n++) {
        const struct sim_entry *b = ENTRY(l->queue, n);
        if (!b->blocking) continue;
        if (b->phase != SIM_PHASE_DONE) return UINT64_MAX;
        ready = max64(ready, b->end_ns);
    }
    return ready;
}

static void entry_complete(struct lane *l, uint64_t number, uint64_t end_ns)
{
    struct sim_queue *q = l->queue;
    struct sim_entry *e = ENTRY(q, number);
    e->end_ns = end_ns;
    __atomic_store_n(&e->phase, SIM_PHASE_DONE, __ATOMIC_RELEASE);
    q->last_end_ns = l->last_end_ns = max64(l->last_end_ns, end_ns);
    while (l->head < l->posted && ENTRY(q, l->head)->phase == SIM_PHASE_DONE)
        l->head++;
    __atomic_store_n(&q->done, l->head, __ATOMIC_RELEASE);
}

/* The head may have begun while the lane was served one entry at a time, and may end so. */
static void head_take_over(struct lane *l)
{
    struct sim_entry *e = ENTRY(l->queue, l->head);
    if (!l->started || l->head >= l->posted) return;
    e->phase = SIM_PHASE_RUNNING;
    e->left_ns = l->left_ns;
}

static void head_give_back(struct lane *l)
{
    const struct sim_entry *e = ENTRY(l->queue, l->head);
    l->started = l->head < l->posted && e->phase == SIM_PHASE_RUNNING;
    l->left_ns = l->started ? e->left_ns : 0;
}

uint64_t side_settle(struct run *r, struct lane *l, uint64_t now_ns)
{
    bool ready_now = false;
    head_take_over(l);
    l->next_ns = UINT64_MAX;
    for (uint64_t n = l->head; n < l->posted; n++) {
        struct sim_entry *e = ENTRY(l->queue, n);
        if (e->phase == SIM_PHASE_RUNNING) ready_now = true;
        if (e->phase != SIM_PHASE_WAITING) continue;
        uint64_t ready = entry_ready_ns(l, n);
        if (ready > now_ns) continue;
        if (e->kind == SIM_WORK_KERNEL) {
            if (ready <= r->time_ns) ready_now = true;
            if (ready > r->time_ns) l->next_ns = min64(l->next_ns, ready);
            continue;
        }
        uint64_t end = ready + run_duration(r, l, n, ready);
        if (end > now_ns) continue;
        e->start_ns = ready;
        if (e->kind == SIM_WORK_COPY) run_account(r, l, ready, end, true);
        entry_complete(l, n, end);
    }
    head_give_back(l);
    return ready_now ? 0 : l->next_ns;
}

struct share {
    uint64_t number;
    uint64_t rate; /* of RATE_ONE */
};

/* Divide the multiprocessors: running kernels keep theirs, the others follow in the order of issue. */
static uint32_t multiprocessors_divide(struct run *r, struct lane *l, struct share *out)
{
    uint32_t all = r->device->profile.sm_count * r->share / r->shares, count = 0;
    if (all == 0) all = 1;
    uint32_t free = all;
    for (int begun = 1; begun >= 0; begun--) {
        for (uint64_t n = l->head; n < l->posted && free > 0 && count < SIDE_MAX; n++) {
            struct sim_entry *e = ENTRY(l->queue, n);
            if (e->kind != SIM_WORK_KERNEL || e->phase != (begun ? SIM_PHASE_RUNNING : SIM_PHASE_WAITING))
                continue;
            if (!begun && entry_ready_ns(l, n) > r->time_ns) continue;
            uint32_t wanted = e->sms == 0 || e->sms > all ? all : e->sms;
            uint32_t given = wanted < free ? wanted : free;
            free -= given;
            out[count++] = (struct share){.number = n, .rate = max64((uint64_t)given * RATE_ONE / wanted, 1)};
        }
        if (begun) continue;
        for (uint32_t i = 0; i < count; i++) {
            struct sim_entry *e = ENTRY(l->queue, out[i].number);
            if (e->phase == SIM_PHASE_RUNNING) continue;
            e->phase = SIM_PHASE_RUNNING;
            e->left_ns = run_duration(r, l, out[i].number, r->time_ns);
            e->start_ns = r->time_ns;
            r->device->engine.kernel_count++;
        }
    }
    return count;
}

void side_occupy(struct run *r, const struct choice *c, uint64_t now_ns)
{
    static __thread struct share share[SIDE_MAX];
    struct lane *l = &r->lane[c->lane];
    run_take_turn(r, c->lane);
    head_take_over(l);
    uint32_t count = multiprocessors_divide(r, l, share);
    uint64_t from = r->time_ns, until = min64(now_ns, l->next_ns);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t left = ENTRY(l->queue, share[i].number)->left_ns;
        until = min64(until, from + (left * RATE_ONE + share[i].rate - 1) / share[i].rate);
    }
    if (c->contended)
        until = min64(until, r->slice_end_ns);
    else if (c->ready_ns < until)
        until = max64(c->ready_ns, min64(until, r->slice_end_ns));
    run_account(r, l, from, until, false);
    r->time_ns = until;
    run_renew_turn(r, c, until);
    for (uint32_t i = 0; i < count; i++) {
        struct sim_entry *e = ENTRY(l->queue, share[i].number);
        e->left_ns -= min64(((until - from) * share[i].rate + RATE_ONE - 1) / RATE_ONE, e->left_ns);
        if (e->left_ns == 0) entry_complete(l, share[i].number, until);
    }
    head_give_back(l);
}

uint64_t side_least(const struct sim_queue *q, uint64_t number)
{
    const struct sim_entry *e = ENTRY(q, number);
    uint64_t least = e->phase == SIM_PHASE_RUNNING ? e->left_ns : e->duration_ns;
    if (q->started && number == q->done) least = q->head_left_ns;
    return max64(least, LEAST_UPDATE_NS);
}
