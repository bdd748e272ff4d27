/* The work queues of contexts: opening one, posting to it, waiting for posted work. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/node/queue.h"

#include "sim/node/engine.h"
#include "sim/node/slot.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>

#define ENTRY(q, n)     (&(q)->entries[(n) % SIM_QUEUE_ENTRIES])
#define DURATION_MAX_NS 600000000000ull
#define SPIN_NS         20000ull /* below this a sleep costs more than it saves */
#define SWEEP_EVERY_NS  5000000ull

int queue_open(struct sim *s, uint32_t device, uint32_t priority)
{
    struct sim_node *n = s->node;
    int found = -1;
    for (int attempt = 0; attempt < 2 && found < 0; attempt++) {
        if (attempt > 0 && sim_sweep(s, 0) == 0) break;
        sim_lock_node(s);
        for (uint32_t i = 0; i < SIM_QUEUES_MAX && found < 0; i++) {
            if (n->queue[i].state == SIM_SLOT_FREE) found = (int)i;
        }
        if (found >= 0) {
            struct sim_queue *q = &n->queue[found];
            memset(q, 0, offsetof(struct sim_queue, entries));
            q->device = device;
            q->proc = (uint32_t)s->slot;
            q->proc_generation = n->proc[s->slot].generation;
            q->priority = priority;
            q->line = n->proc[s->slot].device[device].mig_line % SIM_LINES_MAX;
            if ((uint32_t)found >= n->queue_high)
                __atomic_store_n(&n->queue_high, (uint32_t)found + 1, __ATOMIC_RELEASE);
            q->state = SIM_SLOT_LIVE;
            sim_lock_device(s, device);
            struct sim_line *e = &n->device[device].engine.line[q->line];
            engine_advance(s, device, q->line, sim_now());
            bool listed = false; /* it may have been listed again after the death of another process */
            for (uint32_t i = 0; i < e->active_count; i++)
                listed = listed || e->active[i] == found;
            if (!listed) e->active[e->active_count++] = (uint16_t)found;
            sim_unlock_device(s, device);
        }
        sim_unlock_node(s);
    }
    return found;
}

void queue_close(struct sim *s, int queue)
{
    if (queue < 0) return;
    uint32_t device = s->node->queue[queue].device;
    sim_lock_device(s, device);
    engine_advance(s, device, s->node->queue[queue].line, sim_now());
    sim_unlock_device(s, device);
    sim_lock_node(s);
    engine_drop(s, (uint32_t)queue);
    sim_unlock_node(s);
}

uint32_t queue_free_entries(struct sim *s, int queue)
{
    const struct sim_queue *q = &s->node->queue[queue];
    return SIM_QUEUE_ENTRIES - (uint32_t)(q->posted - __atomic_load_n(&q->done, __ATOMIC_ACQUIRE));
}

uint64_t queue_post(struct sim *s, int queue, const struct queue_work *w)
{
    struct sim_queue *q = &s->node->queue[queue];
    uint32_t slow = __atomic_load_n(&s->node->device[q->device].faults.slow_permille, __ATOMIC_RELAXED);
    uint64_t number = q->posted,
             duration = w->duration_ns < DURATION_MAX_NS ? w->duration_ns : DURATION_MAX_NS;
    if (slow && w->kind != SIM_WORK_DELAY) duration = duration * slow / 1000;
    if (w->touches) memcpy(q->touch[number % SIM_QUEUE_ENTRIES], w->touch, w->touches * sizeof *w->touch);
    bool tight = number == 0 || w->after[0] == number || w->after[1] == number ||
                 (w->follows_all && ENTRY(q, number - 1)->blocking);
    *ENTRY(q, number) = (struct sim_entry){.posted_ns = sim_now(),
                                           .duration_ns = duration,
                                           .after = {w->after[0], w->after[1]},
                                           .sms = w->sms,
                                           .follows_all = w->follows_all,
                                           .blocking = w->blocking,
                                           .kind = (uint32_t)w->kind,
                                           .touches = w->touches};
    if (!tight) q->loose = number + 1;
    __atomic_store_n(&q->posted, number + 1, __ATOMIC_RELEASE);
    return number;
}

static bool is_complete(const struct sim_queue *q, uint64_t number)
{
    return __atomic_load_n(&q->done, __ATOMIC_ACQUIRE) > number ||
           __atomic_load_n(&ENTRY(q, number)->phase, __ATOMIC_ACQUIRE) == SIM_PHASE_DONE;
}

bool queue_done(struct sim *s, int queue, uint64_t number, uint64_t *end_ns)
{
    struct sim_queue *q = &s->node->queue[queue];
    if (!is_complete(q, number)) {
        sim_lock_device(s, q->device);
        engine_advance(s, q->device, q->line, sim_now());
        sim_unlock_device(s, q->device);
        if (!is_complete(q, number)) return false;
    }
    if (end_ns) *end_ns = ENTRY(q, number)->end_ns;
    return true;
}

static void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/*
 * Sleep until CLOCK_MONOTONIC `at_ns`, by the system for long waits and by spinning for the last few
 * microseconds.
 */
static void sleep_until(uint64_t at_ns)
{
    static __thread bool precise;
    uint64_t now = sim_now();
    if (at_ns > now + SPIN_NS) {
        if (!precise) {
            prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
            precise = true;
        }
        struct timespec t = {.tv_sec = (time_t)(at_ns / 1000000000ull),
                             .tv_nsec = (long)(at_ns % 1000000000ull)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
            ;
        return;
    }
    while (sim_now() < at_ns)
        cpu_relax();
}

void queue_wait(struct sim *s, int queue, uint64_t number)
{
    struct sim_queue *q = &s->node->queue[queue];
    while (!is_complete(q, number)) {
        sim_lock_device(s, q->device);
        engine_advance(s, q->device, q->line, sim_now());
        bool done = is_complete(q, number);
        bool shared = s->node->device[q->device].engine.line[q->line % SIM_LINES_MAX].active_count > 1;
        uint64_t at = done ? 0 : engine_predict(s, q->device, q, number);
        bool dropped = q->state != SIM_SLOT_LIVE || q->proc != (uint32_t)s->slot;
        sim_unlock_device(s, q->device);
        if (done || dropped) return; /* dropped: this process was taken for dead */
        if (shared) sim_sweep(s, SWEEP_EVERY_NS);
        sleep_until(at);
    }
}

void queue_wait_through(struct sim *s, int queue, uint64_t number)
{
    struct sim_queue *q = &s->node->queue[queue];
    for (uint64_t done; (done = __atomic_load_n(&q->done, __ATOMIC_ACQUIRE)) <= number;) {
        queue_wait(s, queue, done);
        if (q->state != SIM_SLOT_LIVE || q->proc != (uint32_t)s->slot) return;
    }
}
