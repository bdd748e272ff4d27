/*
 * Charging the container's counter; page/charge.h keeps the counters exact through SIGKILL.
 *
 * Order of a reservation: raise reserving_bytes, raise the counter (commit point), call the driver, lower
 * reserving_bytes. A process killed in between has the bytes in its share, whether or not the driver allocated
 * them, and reaping the process removes them: an over-count while it is dying, never an under-count.
 * reserving_bytes only tells the agent which part of the counter NVML may not report yet.
 *
 * A refusal is final only after what this process keeps unused (its pools) has been freed and dead processes of
 * the slice have been reaped: the next program of a script must not fail because the agent has not yet noticed
 * the end of the previous one. Where only the agent can tell (processes of another PID namespace, the residual
 * of a process that has just died), the call waits for a few of the agent's polls, if an agent is running, and
 * does not wait again soon if that was in vain.
 *
 * Beyond the card. If a slice spills, a charge beyond memory_limit_bytes takes the slow path: first the charge,
 * within the cap, then a check of all unpageable charges. Every process counts its charge as unpageable until
 * it has declared otherwise, so two processes that charge at once both see it: at most one of them is refused
 * memory of the card without need, and the limit is never exceeded.
 */
#define _GNU_SOURCE
#include "shim/charge.h"

#include "page/reap.h"
#include "shim/process.h"

#include <time.h>

#define COLD __attribute__((cold, noinline)) /* keeps the fast path short */

#define AGENT_ALIVE_NS    1000000000u
#define AGENT_POLLS_NS    500000000u  /* two polls of the agent, and a margin for a busy machine */
#define NO_SECOND_WAIT_NS 5000000000u /* after a wait in vain, no further wait for so long */
#define DRIVER_LAGS_NS \
    200000000u /* a driver frees the memory of a dead process within this time, if not at once */
#define PAUSE_NS 2000000u

static uint64_t device_limit_bytes(int device)
{
    const struct cb_limits_device *limits = &cb.limits->device[device];
    uint64_t limit = __atomic_load_n(&limits->memory_limit_bytes, __ATOMIC_ACQUIRE);
    uint64_t residual = __atomic_load_n(&limits->residual_bytes, __ATOMIC_ACQUIRE);
    if (limit == 0) return UINT64_MAX;
    return limit > residual ? limit - residual : 0;
}

static inline __attribute__((always_inline)) bool counter_add(int device, uint64_t bytes)
{
    return cb_charge_add(cb.usage, cb.slot, (uint32_t)device, bytes, device_limit_bytes(device));
}

/* ---- beyond memory_limit_bytes ---- */

static uint64_t residual_bytes_of(int device)
{
    return __atomic_load_n(&cb.limits->device[device].residual_bytes, __ATOMIC_ACQUIRE);
}

static COLD bool counter_add_within_cap(int device, uint64_t bytes)
{
    uint64_t cap = cb_cap(&cb.limits->device[device]), residual = residual_bytes_of(device);
    return cb_charge_add(cb.usage, cb.slot, (uint32_t)device, bytes, cap > residual ? cap - residual : 0);
}

/*
 * Unpageable bytes that one process has of a device, or more. Its counters are two words: they are consistent
 * if no charge happened between two reads of them.
 */
static uint64_t unpageable_bytes_of(const struct cb_usage_proc *proc, int device)
{
    const struct cb_usage_share *share = &proc->share[device];
    uint64_t bytes = 0;
    for (int tries = 0; tries < 64; tries++) {
        uint64_t before = __atomic_load_n(&share->sequence, __ATOMIC_SEQ_CST);
        uint64_t pageable =
            (uint64_t)__atomic_load_n(&proc->pageable_units[device], __ATOMIC_SEQ_CST) * CB_CHARGE_UNIT;
        bytes = __atomic_load_n(&share->used_bytes, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&share->sequence, __ATOMIC_SEQ_CST) == before)
            return bytes > pageable ? bytes - pageable : 0;
    }
    return bytes;
}

/* Return true if the unpageable bytes of all processes are within `limit`. */
static bool unpageable_within(int device, uint64_t limit)
{
    uint64_t fixed = residual_bytes_of(device);
    for (uint32_t slot = 0; slot < CB_PROCS_MAX; slot++) {
        const struct cb_usage_proc *proc = &cb.usage->proc[slot];
        if (__atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) != CB_PROC_FREE)
            fixed += unpageable_bytes_of(proc, device);
    }
    return fixed <= limit;
}

static COLD bool counter_add_resident(int device, uint64_t bytes)
{
    if (!counter_add_within_cap(device, bytes)) return false;
    if (unpageable_within(device, cb.limits->device[device].resident_limit_bytes)) return true;
    (void)cb_charge_sub(cb.usage, cb.slot, (uint32_t)device, bytes);
    return false;
}

static COLD bool counter_add_fast(int device, uint64_t bytes)
{
    return counter_add(device, bytes);
}

/* Charge unpageable bytes, on the fast path or on the slow one. */
static COLD bool counter_add_unpageable(int device, uint64_t bytes)
{
    return counter_add(device, bytes) || (cb_spills(device) && counter_add_resident(device, bytes));
}

static uint64_t monotonic_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static bool happened_within(uint64_t then_ns, uint64_t now_ns, uint64_t span_ns)
{
    return then_ns != 0 && (then_ns >= now_ns || now_ns - then_ns < span_ns);
}

/*
 * Return true if the agent may be about to free `bytes` that no process here can find. A wait in vain is not
 * repeated for the same death, nor soon for the same processes of other namespaces.
 */
static bool agent_may_free(int device, uint64_t bytes, uint64_t now_ns)
{
    static uint64_t waited_for_ns[CB_DEVICES_MAX], waited_ns[CB_DEVICES_MAX];
    const struct cb_limits_device *limits = &cb.limits->device[device];
    uint64_t limit = cb_cap(limits);
    uint64_t used = __atomic_load_n(&cb.usage->device[device].used_bytes, __ATOMIC_ACQUIRE);
    if (limit == 0 || bytes > limit ||
        !happened_within(__atomic_load_n(&cb.limits->heartbeat_ns, __ATOMIC_RELAXED), now_ns, AGENT_ALIVE_NS))
        return false;
    uint64_t capacity = limit - bytes, reaped = __atomic_load_n(&cb.usage->reaped_ns, __ATOMIC_RELAXED);
    /* the residual may belong to the dead process */
    if (used <= capacity && happened_within(reaped, now_ns, AGENT_POLLS_NS))
        return __atomic_exchange_n(&waited_for_ns[device], reaped, __ATOMIC_RELAXED) != reaped;
    uint64_t elsewhere = cb_processes_elsewhere(device);
    if (elsewhere == 0 || used - (elsewhere < used ? elsewhere : used) > capacity ||
        happened_within(__atomic_load_n(&waited_ns[device], __ATOMIC_RELAXED), now_ns, NO_SECOND_WAIT_NS))
        return false;
    __atomic_store_n(&waited_ns[device], now_ns, __ATOMIC_RELAXED);
    return true;
}

typedef bool (*add_fn)(int device, uint64_t bytes);

static bool counter_add_after_agent(int device, uint64_t bytes, add_fn try)
{
    const struct timespec pause = {.tv_sec = 0, .tv_nsec = PAUSE_NS};
    uint64_t began = monotonic_ns();
    if (!agent_may_free(device, bytes, began)) return false;
    while (monotonic_ns() - began < AGENT_POLLS_NS) {
        nanosleep(&pause, NULL);
        if (try(device, bytes)) return true;
    }
    return false;
}

static COLD bool counter_add_after_reaping(int device, uint64_t bytes, add_fn try)
{
    if (cb_spills(device) && try(device, bytes)) return true;
    cb_run_on_shortage(device);
    if (try(device, bytes)) return true;
    if (cb_processes_reap(device) > 0 && try(device, bytes)) return true;
    return counter_add_after_agent(device, bytes, try);
}

bool cb_driver_lags(unsigned *tries)
{
    const struct timespec pause = {.tv_sec = 0, .tv_nsec = PAUSE_NS};
    if (*tries >= DRIVER_LAGS_NS / PAUSE_NS || cb.usage == NULL) return false;
    if (*tries == 0 && !happened_within(__atomic_load_n(&cb.usage->reaped_ns, __ATOMIC_RELAXED),
                                        monotonic_ns(), AGENT_ALIVE_NS))
        return false;
    ++*tries;
    nanosleep(&pause, NULL);
    return true;
}

static COLD bool reservation_abandon(int device, uint64_t bytes)
{
    __atomic_fetch_sub(&cb.proc->reserving_bytes[device], bytes, __ATOMIC_RELAXED);
    return false;
}

static COLD bool reserve_slowly(int device, uint64_t bytes)
{
    return counter_add_after_reaping(device, bytes, counter_add_unpageable) ||
           reservation_abandon(device, bytes);
}

bool cb_reserve_quietly(int device, uint64_t bytes)
{
    if (device < 0) return true;
    __atomic_fetch_add(&cb.proc->reserving_bytes[device], bytes, __ATOMIC_RELAXED);
    if (CB_LIKELY(counter_add(device, bytes))) return true;
    return reserve_slowly(device, bytes);
}

void cb_denied(int device)
{
    __atomic_fetch_add(&cb.usage->device[device].denied_count, 1, __ATOMIC_RELAXED);
}

bool cb_reserve(int device, uint64_t bytes)
{
    if (cb_reserve_quietly(device, bytes)) return true;
    cb_denied(device);
    return false;
}

static COLD bool reserve_linear_slowly(int device, uint64_t bytes)
{
    if (cb_spills(device)) return reservation_abandon(device, bytes);
    if (counter_add_after_reaping(device, bytes, counter_add_fast)) return true;
    cb_denied(device);
    return reservation_abandon(device, bytes);
}

bool cb_reserve_linear(int device, uint64_t bytes)
{
    if (device < 0) return true;
    __atomic_fetch_add(&cb.proc->reserving_bytes[device], bytes, __ATOMIC_RELAXED);
    if (CB_LIKELY(counter_add(device, bytes))) return true;
    return reserve_linear_slowly(device, bytes);
}

bool cb_reserve_beyond(int *device, uint64_t bytes)
{
    int on = *device;
    if (!cb_spills(on)) return false;
    const struct cb_limits_device *limits = &cb.limits->device[on];
    uint32_t units = (uint32_t)(bytes / CB_CHARGE_UNIT), *pageable = &cb.proc->pageable_units[on];
    __atomic_fetch_add(&cb.proc->reserving_bytes[on], bytes, __ATOMIC_RELAXED);
    if (!counter_add_after_reaping(on, bytes, counter_add_within_cap)) {
        __atomic_fetch_sub(&cb.proc->reserving_bytes[on], bytes, __ATOMIC_RELAXED);
        cb_denied(on);
        return false;
    }
    /* Small allocations stay on the card as long as there is room: pages are larger than they are. */
    uint64_t large = 1ull << 20;
    if (unpageable_within(on, bytes < large ? limits->resident_limit_bytes : limits->memory_limit_bytes))
        return true;
    uint32_t before = __atomic_load_n(pageable, __ATOMIC_RELAXED);
    do {
        if (bytes / CB_CHARGE_UNIT > UINT32_MAX - before) { /* more than 2 TiB in one process */
            cb_cancel(on, bytes);
            cb_denied(on);
            return false;
        }
    } while (!__atomic_compare_exchange_n(pageable, &before, before + units, true, __ATOMIC_SEQ_CST,
                                          __ATOMIC_RELAXED));
    *device = CB_PAGEABLE(on);
    return true;
}

static bool counter_add_for_slot(uint32_t slot, int device, uint64_t bytes)
{
    uint64_t cap = cb_cap(&cb.limits->device[device]), residual = residual_bytes_of(device);
    if (cb_charge_add(cb.usage, slot, (uint32_t)device, bytes, device_limit_bytes(device))) return true;
    if (!cb_spills(device) ||
        !cb_charge_add(cb.usage, slot, (uint32_t)device, bytes, cap > residual ? cap - residual : 0))
        return false;
    if (unpageable_within(device, cb.limits->device[device].resident_limit_bytes)) return true;
    (void)cb_charge_sub(cb.usage, slot, (uint32_t)device, bytes);
    return false;
}

bool cb_reserve_for(uint32_t slot, int device, uint64_t bytes)
{
    if (counter_add_for_slot(slot, device, bytes)) return true;
    cb_run_on_shortage(device);
    if (counter_add_for_slot(slot, device, bytes)) return true;
    if (cb_processes_reap(device) > 0 && counter_add_for_slot(slot, device, bytes)) return true;
    cb_denied(device);
    return false;
}

void cb_commit(int device, uint64_t bytes)
{
    if (CB_UNLIKELY(device < 0)) {
        if (device == -1) return;
        device = CB_PAGEABLE(device);
    }
    __atomic_fetch_sub(&cb.proc->reserving_bytes[device], bytes, __ATOMIC_RELAXED);
}

static COLD void uncharge_pageable(int device, uint64_t bytes)
{
    __atomic_fetch_sub(&cb.proc->pageable_units[device], (uint32_t)(bytes / CB_CHARGE_UNIT),
                       __ATOMIC_SEQ_CST);
    (void)cb_charge_sub(cb.usage, cb.slot, (uint32_t)device, bytes);
}

void cb_uncharge(int device, uint64_t bytes)
{
    if (CB_UNLIKELY(device < 0)) {
        if (device < -1 && bytes > 0) uncharge_pageable(CB_PAGEABLE(device), bytes);
        return;
    }
    if (bytes > 0) (void)cb_charge_sub(cb.usage, cb.slot, (uint32_t)device, bytes);
}

void cb_cancel(int device, uint64_t bytes)
{
    cb_uncharge(device, bytes);
    cb_commit(device, bytes);
}

bool cb_true_up(int device, uint64_t from, uint64_t to)
{
    if (device < 0 || to == from) return true;
    if (to < from) {
        cb_uncharge(device, from - to);
        return true;
    }
    return counter_add(device, to - from) || counter_add_unpageable(device, to - from);
}

/*
 * Free what dead processes of the slice still hold. Costs two loads if only this process holds memory of the
 * device.
 */
static void reap_siblings(int device)
{
    uint64_t used = __atomic_load_n(&cb.usage->device[device].used_bytes, __ATOMIC_ACQUIRE);
    if (used != __atomic_load_n(&cb.proc->share[device].used_bytes, __ATOMIC_RELAXED))
        (void)cb_processes_reap_ended(device);
}

uint64_t cb_limit_left(int device, uint64_t *limit)
{
    reap_siblings(device);
    uint64_t cap = cb_cap(&cb.limits->device[device]), taken = residual_bytes_of(device);
    taken += __atomic_load_n(&cb.usage->device[device].used_bytes, __ATOMIC_ACQUIRE);
    *limit = cap;
    if (cap == 0) return UINT64_MAX;
    return cap > taken ? cap - taken : 0;
}
