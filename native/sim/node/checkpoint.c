/* Removal of processes from their cards, and their restoration; checkpoint.h has the theory. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/node/checkpoint.h"

#include "sim/node/device_memory.h"
#include "sim/node/engine.h"
#include "sim/node/liveness.h"
#include "sim/node/managed.h"
#include "sim/node/slot.h"

#include <unistd.h>

#define POLL_NS 200000

int sim_checkpoint_find(struct sim *s, pid_t pid)
{
    if (pid <= 0 || !sim_liveness_readable(s)) return -1;
    for (uint32_t i = 0; i < sim_procs_used(s->node); i++) {
        if (__atomic_load_n(&s->node->proc[i].state, __ATOMIC_ACQUIRE) != SIM_SLOT_LIVE) continue;
        if (((int)i == s->slot || sim_slot_is_held(s, i)) && sim_process_pid(s, i) == pid) return (int)i;
    }
    return -1;
}

/* Return true if all posted work of a process is done. */
static bool process_is_idle(struct sim *s, uint32_t slot)
{
    for (uint32_t i = 0; i < sim_queues_used(s->node); i++) {
        struct sim_queue *q = &s->node->queue[i];
        if (q->state != SIM_SLOT_LIVE || q->proc != slot) continue;
        sim_lock_device(s, q->device);
        engine_advance(s, q->device, q->line, sim_now());
        bool idle = q->done >= __atomic_load_n(&q->posted, __ATOMIC_ACQUIRE);
        sim_unlock_device(s, q->device);
        if (!idle) return false;
    }
    return true;
}

enum sim_answer sim_checkpoint_lock(struct sim *s, uint32_t slot, uint32_t timeout_ms)
{
    const struct timespec look = {.tv_sec = 0, .tv_nsec = POLL_NS};
    uint64_t until = sim_now() + timeout_ms * 1000000ull;
    uint32_t generation = s->node->proc[slot].generation;
    if (!sim_gate_change(s, slot, SIM_RUNNING, SIM_LOCKED)) return SIM_WRONG_STATE;
    while (!process_is_idle(s, slot) && s->node->proc[slot].generation == generation &&
           ((int)slot == s->slot || sim_slot_is_held(s, slot))) {
        if (timeout_ms && sim_now() >= until) {
            (void)sim_gate_change(s, slot, SIM_LOCKED, SIM_RUNNING);
            return SIM_TIMED_OUT;
        }
        nanosleep(&look, NULL);
    }
    return SIM_DONE;
}

/* Both require the device's lock. */
static void device_park(struct sim *s, uint32_t device, uint32_t slot)
{
    struct sim_device *d = &s->node->device[device];
    struct sim_proc_device *p = &s->node->proc[slot].device[device];
    struct sim_gi *g = sim_instance_of(d, p);
    managed_evict_process(s, device, slot);
    uint64_t held = p->alloc_bytes + p->context_bytes;
    p->parked_alloc_bytes = p->alloc_bytes;
    p->parked_context_bytes = p->context_bytes;
    p->parked_context_count = p->context_count;
    if (g) g->used_bytes -= held;
    d->used_bytes -= held;
    d->alloc_bytes -= p->alloc_bytes;
    p->alloc_bytes = p->context_bytes = 0;
    p->context_count = 0;
}

static bool device_unpark(struct sim *s, uint32_t device, uint32_t slot)
{
    struct sim_device *d = &s->node->device[device];
    struct sim_proc_device *p = &s->node->proc[slot].device[device];
    struct sim_gi *g = sim_instance_of(d, p);
    uint64_t wanted = p->parked_alloc_bytes + p->parked_context_bytes;
    if (wanted > sim_free_bytes(s, device, slot)) (void)managed_evict_for_process(s, device, slot, wanted);
    if (wanted > sim_free_bytes(s, device, slot)) return false;
    if (g) g->used_bytes += wanted;
    d->used_bytes += wanted;
    d->alloc_bytes += p->parked_alloc_bytes;
    p->alloc_bytes += p->parked_alloc_bytes;
    p->context_bytes += p->parked_context_bytes;
    p->context_count += p->parked_context_count;
    p->parked_alloc_bytes = p->parked_context_bytes = 0;
    p->parked_context_count = 0;
    sim_update_peaks(s, device);
    return true;
}

enum sim_answer sim_checkpoint_take(struct sim *s, uint32_t slot)
{
    sim_lock_node(s);
    bool locked = sim_gate_state(s, slot) == SIM_LOCKED;
    for (uint32_t i = 0; locked && i < s->node->device_count; i++) {
        sim_lock_device(s, i);
        device_park(s, i, slot);
        sim_unlock_device(s, i);
    }
    if (locked) (void)sim_gate_change(s, slot, SIM_LOCKED, SIM_CHECKPOINTED);
    sim_unlock_node(s);
    return locked ? SIM_DONE : SIM_WRONG_STATE;
}

enum sim_answer sim_checkpoint_restore(struct sim *s, uint32_t slot)
{
    enum sim_answer answer = SIM_DONE;
    (void)sim_sweep(s, 0);
    sim_lock_node(s);
    if (sim_gate_state(s, slot) != SIM_CHECKPOINTED) answer = SIM_WRONG_STATE;
    uint32_t back = 0;
    for (; answer == SIM_DONE && back < s->node->device_count; back++) {
        sim_lock_device(s, back);
        if (!device_unpark(s, back, slot)) answer = SIM_NO_ROOM;
        sim_unlock_device(s, back);
    }
    for (uint32_t i = 0; answer == SIM_NO_ROOM && i + 1 < back; i++) { /* all but the device that was full */
        sim_lock_device(s, i);
        device_park(s, i, slot);
        sim_unlock_device(s, i);
    }
    if (answer == SIM_DONE) (void)sim_gate_change(s, slot, SIM_CHECKPOINTED, SIM_LOCKED);
    sim_unlock_node(s);
    return answer;
}

enum sim_answer sim_checkpoint_unlock(struct sim *s, uint32_t slot)
{
    return sim_gate_change(s, slot, SIM_LOCKED, SIM_RUNNING) ? SIM_DONE : SIM_WRONG_STATE;
}
