/* Accounting of time that the parts of the engine share; engine.h has the theory. */
#include "sim/node/engine_run.h"

#include "sim/node/managed.h"

/* Return true if two lanes run at once. */
bool run_together(const struct lane *a, const struct lane *b)
{
    return a->group && a->group == b->group;
}

/* A line may lag behind the others, so the history may have gone on: times older than it keeps are left out. */
void run_account_card(struct run *r, uint64_t from_ns, uint64_t to_ns, bool copy)
{
    struct sim_engine *e = &r->device->engine;
    *(copy ? &e->copy_ns : &e->busy_ns) += (to_ns - from_ns) * r->share / r->shares;
    if (!copy && r->gi_share > 0) r->device->mig.busy_ns[r->gi] += (to_ns - from_ns) * r->share / r->gi_share;
    for (uint64_t t = max64(
             from_ns, to_ns > SIM_HISTORY_TICKS * SIM_TICK_NS ? to_ns - SIM_HISTORY_TICKS * SIM_TICK_NS : 0);
         t < to_ns;) {
        uint64_t tick = t / SIM_TICK_NS, end = min64(to_ns, (tick + 1) * SIM_TICK_NS),
                 i = tick % SIM_HISTORY_TICKS;
        if (e->history.tick[i] < tick) {
            e->history.tick[i] = tick;
            e->history.busy_ns[i] = e->history.copy_ns[i] = 0;
        }
        if (e->history.tick[i] == tick)
            *(copy ? &e->history.copy_ns[i] : &e->history.busy_ns[i]) += (end - t) * r->share / r->shares;
        t = end;
    }
}

/* A process that had the card to `rate` only is charged that share of the time. */
void run_account_process(struct run *r, struct lane *l, uint64_t from_ns, uint64_t to_ns, bool copy,
                         uint32_t rate)
{
    struct sim_proc_device *p =
        &r->sim->node->proc[l->queue->proc % SIM_PROCS_MAX].device[l->queue->device % SIM_DEVICES_MAX];
    *(copy ? &p->copy_ns : &p->busy_ns) += (to_ns - from_ns) * rate / RATE_ONE;
    if (copy) return;
    for (uint64_t t =
             max64(from_ns,
                   to_ns > SIM_PROC_TICKS * SIM_PROC_TICK_NS ? to_ns - SIM_PROC_TICKS * SIM_PROC_TICK_NS : 0);
         t < to_ns;) {
        uint64_t tick = t / SIM_PROC_TICK_NS, end = min64(to_ns, (tick + 1) * SIM_PROC_TICK_NS);
        uint64_t i = tick % SIM_PROC_TICKS;
        if (p->ticks.tick[i] != tick) {
            p->ticks.tick[i] = tick;
            p->ticks.busy_ns[i] = 0;
        }
        p->ticks.busy_ns[i] += (end - t) * rate / RATE_ONE;
        t = end;
    }
}

void run_account(struct run *r, struct lane *l, uint64_t from_ns, uint64_t to_ns, bool copy)
{
    run_account_card(r, from_ns, to_ns, copy);
    run_account_process(r, l, from_ns, to_ns, copy, RATE_ONE);
}

/* Duration of an entry from `start_ns` on, including the managed memory that it waits for. */
uint64_t run_duration(struct run *r, struct lane *l, uint64_t number, uint64_t start_ns)
{
    struct sim_entry *e = ENTRY(l->queue, number);
    if (e->touches == 0) return e->duration_ns;
    const struct sim_touch *touch = l->queue->touch[number % SIM_QUEUE_ENTRIES];
    uint64_t moving =
        managed_touch(r->sim, l->queue->device, touch, e->touches, r->commit ? start_ns : MANAGED_ESTIMATE);
    if (!r->commit) return e->duration_ns + moving;
    e->touches = 0;
    return e->duration_ns += moving;
}

/* A short slice answers sooner, a long one switches less. The real lengths of the classes are not published. */
static uint64_t slice_ns(const struct run *r)
{
    static const uint64_t length_ns[SIM_TIMESLICES] = {SIM_SLICE_NS, SIM_SLICE_NS / 2, 2 * SIM_SLICE_NS,
                                                       8 * SIM_SLICE_NS};
    return length_ns[r->device->timeslice % SIM_TIMESLICES];
}

void run_take_turn(struct run *r, uint32_t lane)
{
    bool passed = lane != r->current && !run_together(&r->lane[lane], &r->lane[r->current]);
    if (passed || r->time_ns >= r->slice_end_ns) r->slice_end_ns = r->time_ns + slice_ns(r);
    if (r->commit && passed) r->device->engine.switch_count++;
    r->current = lane;
}

/* If a lane ran past the end of its slice between two updates, its next slice begins where that end was. */
void run_renew_turn(struct run *r, const struct choice *c, uint64_t until)
{
    if (!c->contended && r->slice_end_ns < until)
        r->slice_end_ns += sim_round_up(until - r->slice_end_ns, slice_ns(r));
}
