/*
 * Freeing the process slot of a dead process: its bytes are removed from the container's counters, then the
 * slot is free.
 *
 * May be run by the agent and by any process of the slice at once, may be killed anywhere and run again:
 * charge.h explains why a byte is never removed twice. Every loop is bounded, because a tenant can write this
 * page as it likes and the agent must not spin on it; false means "call again later".
 */
#ifndef CALABASH_REAP_H
#define CALABASH_REAP_H

#include "page/charge.h"

#define CB_REAP_TRIES 100000u

static inline uint32_t cb_proc_generation(const struct cb_usage_proc *proc)
{
    return __atomic_load_n(&proc->generation, __ATOMIC_ACQUIRE);
}

/* Remove everything that this generation of the slot holds of one device. */
static inline bool cb_reap_device(struct cb_usage *usage, uint32_t slot, uint32_t device, uint32_t generation)
{
    struct cb_usage_proc *proc = &usage->proc[slot];
    for (unsigned i = 0; i < CB_REAP_TRIES; i++) {
        struct cb_pair seen = cb_pair_read(&usage->device[device].used_bytes);
        if (!cb_charge_help(usage, device, seen.high)) continue;
        struct cb_pair share = cb_pair_read(&proc->share[device]);
        /*
         * As long as the tag is unchanged, no share of this device changes: if a second owner of the slot
         * charged something in the meantime, the swap below fails.
         */
        if (cb_proc_generation(proc) != generation) return true;
        struct cb_pair again = cb_pair_read(&usage->device[device].used_bytes);
        if (again.low != seen.low || again.high != seen.high) continue;
        uint64_t take = share.low < seen.low ? share.low : seen.low;
        if (take > CB_CHARGE_MAX) take = CB_CHARGE_MAX;
        take -= take % CB_CHARGE_UNIT;
        if (take == 0) return true;
        (void)cb_charge_try(usage, slot, device, seen, share.high, -(int64_t)take);
    }
    return false;
}

/*
 * Change the slot's head from one (state, generation, pid) to another as one word; host_pid may change
 * meanwhile.
 */
static inline bool cb_proc_change(struct cb_usage_proc *proc, uint32_t state, uint32_t generation,
                                  uint32_t next_state, uint32_t next_generation, int32_t next_pid)
{
    for (unsigned i = 0; i < CB_REAP_TRIES; i++) {
        struct cb_pair seen = cb_pair_read(&proc->state);
        if ((uint32_t)seen.low != state || (uint32_t)(seen.low >> 32) != generation) return false;
        struct cb_pair next = {.low = (uint64_t)next_generation << 32 | next_state,
                               .high = (uint32_t)next_pid};
        if (cb_pair_swap(&proc->state, &seen, next)) return true;
    }
    return false;
}

/* Subtract `amount` from an approximate counter, never below zero. */
static inline void cb_hint_sub64(uint64_t *counter, uint64_t amount)
{
    uint64_t seen = __atomic_load_n(counter, __ATOMIC_RELAXED);
    for (unsigned i = 0; amount > 0 && i < CB_REAP_TRIES; i++)
        if (__atomic_compare_exchange_n(counter, &seen, seen > amount ? seen - amount : 0, true,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            break;
}

static inline void cb_hint_sub32(uint32_t *counter, uint32_t amount)
{
    uint32_t seen = __atomic_load_n(counter, __ATOMIC_RELAXED);
    for (unsigned i = 0; amount > 0 && i < CB_REAP_TRIES; i++)
        if (__atomic_compare_exchange_n(counter, &seen, seen > amount ? seen - amount : 0, true,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            break;
}

/*
 * Take all of an approximate counter; return 0 if other processes keep changing it. The loop is bounded, unlike
 * that of the compiler's own exchange.
 */
static inline uint64_t cb_hint_take64(uint64_t *counter)
{
    uint64_t seen = __atomic_load_n(counter, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < CB_REAP_TRIES; i++)
        if (__atomic_compare_exchange_n(counter, &seen, 0, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return seen;
    return 0;
}

static inline uint32_t cb_hint_take32(uint32_t *counter)
{
    uint32_t seen = __atomic_load_n(counter, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < CB_REAP_TRIES; i++)
        if (__atomic_compare_exchange_n(counter, &seen, 0, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return seen;
    return 0;
}

/*
 * Remove a dead process's work from the in-flight and waiting counters. Each amount is removed once, by
 * whichever reaper comes first.
 */
static inline void cb_reap_work(struct cb_usage *usage, uint32_t slot, uint32_t device)
{
    struct cb_usage_proc *proc = &usage->proc[slot];
    cb_hint_sub64(&usage->device[device].inflight_ns, cb_hint_take64(&proc->inflight_ns[device]));
    cb_hint_sub32(&usage->device[device].waiting_count, cb_hint_take32(&proc->waiting[device]));
}

/* Free slot `slot` if it still is of this generation; the caller knows that its process is dead. */
static inline bool cb_reap_slot(struct cb_usage *usage, uint32_t slot, uint32_t generation)
{
    struct cb_usage_proc *proc = &usage->proc[slot];
    uint32_t state = __atomic_load_n(&proc->state, __ATOMIC_ACQUIRE);
    if (state == CB_PROC_FREE || cb_proc_generation(proc) != generation) return true;
    for (uint32_t device = 0; device < CB_DEVICES_MAX; device++)
        if (!cb_reap_device(usage, slot, device, generation)) return false;
    for (uint32_t device = 0; device < CB_DEVICES_MAX && cb_proc_generation(proc) == generation; device++)
        cb_reap_work(usage, slot, device);
    (void)cb_proc_change(proc, state, generation, CB_PROC_FREE, generation, 0);
    return true;
}

#endif
