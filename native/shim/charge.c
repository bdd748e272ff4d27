/*
 * Charging the container's counter; the exactness through SIGKILL is the business of page/charge.h.
 *
 * Order of a reservation: reserving_bytes up, counter up (commit point), driver, reserving_bytes down. A
 * process killed in between has the bytes in its share, whether or not the driver got to allocate them, and
 * reclaiming the process takes them off: an over-count while it is dying, never an under-count.
 * reserving_bytes only tells the agent which part of the counter NVML may not show yet.
 *
 * A denial is final only after this process' pools have been trimmed and dead siblings have been reclaimed: a
 * script's next program must not fail because the agent has not yet noticed the end of the previous one.
 */
#define _GNU_SOURCE
#include "shim/shim.h"

#include "page/reclaim.h"
#include "shim/process.h"

#include <sched.h>
#include <time.h>

void cb_spin_wait(cb_spin *spin)
{
    const struct timespec pause = {.tv_sec = 0, .tv_nsec = 50000};
    for (unsigned turn = 0;; turn++) {
        if (__atomic_load_n(&spin->held, __ATOMIC_RELAXED) == 0 &&
            !__atomic_exchange_n(&spin->held, 1, __ATOMIC_ACQUIRE))
            return;
        if (turn < 100)
            __builtin_ia32_pause();
        else if (turn < 1000)
            sched_yield();
        else
            nanosleep(&pause, NULL); /* the holder may be of lower real-time priority than we */
    }
}

static uint64_t ceiling(int device)
{
    const struct cb_limits_device *limits = &cb.limits->device[device];
    uint64_t limit = __atomic_load_n(&limits->memory_limit_bytes, __ATOMIC_ACQUIRE);
    uint64_t residual = __atomic_load_n(&limits->residual_bytes, __ATOMIC_ACQUIRE);
    if (limit == 0) return UINT64_MAX;
    return limit > residual ? limit - residual : 0;
}

static bool add(int device, uint64_t bytes)
{
    return cb_charge_add(cb.usage, cb.slot, (uint32_t)device, bytes, ceiling(device));
}

static bool add_after_cleaning(int device, uint64_t bytes)
{
    cb_pools_trim(device);
    if (add(device, bytes)) return true;
    return cb_processes_reclaim() > 0 && add(device, bytes);
}

bool cb_reserve_quietly(int device, uint64_t bytes)
{
    if (device < 0) return true;
    __atomic_fetch_add(&cb.proc->reserving_bytes[device], bytes, __ATOMIC_RELAXED);
    if (CB_LIKELY(add(device, bytes)) || add_after_cleaning(device, bytes)) return true;
    __atomic_fetch_sub(&cb.proc->reserving_bytes[device], bytes, __ATOMIC_RELAXED);
    return false;
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

void cb_commit(int device, uint64_t bytes)
{
    if (device >= 0) __atomic_fetch_sub(&cb.proc->reserving_bytes[device], bytes, __ATOMIC_RELAXED);
}

void cb_uncharge(int device, uint64_t bytes)
{
    if (device >= 0 && bytes > 0) (void)cb_charge_sub(cb.usage, cb.slot, (uint32_t)device, bytes);
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
    return add(device, to - from);
}

uint64_t cb_limit_left(int device, uint64_t *limit)
{
    uint64_t top = ceiling(device);
    uint64_t used = __atomic_load_n(&cb.usage->device[device].used_bytes, __ATOMIC_ACQUIRE);
    *limit = __atomic_load_n(&cb.limits->device[device].memory_limit_bytes, __ATOMIC_ACQUIRE);
    return top > used ? top - used : 0;
}
