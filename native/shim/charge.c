/*
 * Charging the container's counter; the exactness through SIGKILL is the business of page/charge.h.
 *
 * Order of a reservation: reserving_bytes up, counter up (commit point), driver, reserving_bytes down. A
 * process killed in between has the bytes in its share, whether or not the driver got to allocate them, and
 * reaping the process takes them off: an over-count while it is dying, never an under-count.
 * reserving_bytes only tells the agent which part of the counter NVML may not show yet.
 *
 * A denial is final only after what this process keeps unused (its pools) has been given back and dead siblings have been reaped: a
 * script's next program must not fail because the agent has not yet noticed the end of the previous one. Where
 * only the agent can tell (processes of another PID namespace, the residual of one that has just died), the
 * call waits for a few of its looks, if there is an agent, and not again soon when that was in vain.
 */
#define _GNU_SOURCE
#include "shim/charge.h"

#include "page/reap.h"
#include "shim/process.h"

#include <time.h>

#define AGENT_ALIVE_NS 1000000000u
#define AGENT_LOOKS_NS 500000000u  /* two of the agent's looks, and something for a busy machine */
#define FUTILE_NS      5000000000u /* after a wait in vain there is none for so long */
#define DRIVER_LAGS_NS 200000000u  /* a driver frees what the dead held within this, if not at once */
#define PAUSE_NS       2000000u

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

static uint64_t clock_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static bool recently(uint64_t then_ns, uint64_t now_ns, uint64_t span_ns)
{
    return then_ns != 0 && (then_ns >= now_ns || now_ns - then_ns < span_ns);
}

/*
 * Whether the agent may be about to find room for `bytes` that nobody here can find. A wait in vain is not
 * repeated for the same death, nor soon for the same processes elsewhere.
 */
static bool agent_may_help(int device, uint64_t bytes, uint64_t now_ns)
{
    static uint64_t waited_for_ns[CB_DEVICES_MAX], waited_ns[CB_DEVICES_MAX];
    const struct cb_limits_device *limits = &cb.limits->device[device];
    uint64_t limit = __atomic_load_n(&limits->memory_limit_bytes, __ATOMIC_ACQUIRE);
    uint64_t used = __atomic_load_n(&cb.usage->device[device].used_bytes, __ATOMIC_ACQUIRE);
    if (limit == 0 || bytes > limit ||
        !recently(__atomic_load_n(&cb.limits->heartbeat_ns, __ATOMIC_RELAXED), now_ns, AGENT_ALIVE_NS))
        return false;
    uint64_t room = limit - bytes, reaped = __atomic_load_n(&cb.usage->reaped_ns, __ATOMIC_RELAXED);
    if (used <= room && recently(reaped, now_ns, AGENT_LOOKS_NS)) /* the residual may be the dead one's */
        return __atomic_exchange_n(&waited_for_ns[device], reaped, __ATOMIC_RELAXED) != reaped;
    uint64_t elsewhere = cb_processes_elsewhere(device);
    if (elsewhere == 0 || used - (elsewhere < used ? elsewhere : used) > room ||
        recently(__atomic_load_n(&waited_ns[device], __ATOMIC_RELAXED), now_ns, FUTILE_NS))
        return false;
    __atomic_store_n(&waited_ns[device], now_ns, __ATOMIC_RELAXED);
    return true;
}

static bool add_with_the_agent(int device, uint64_t bytes)
{
    const struct timespec pause = {.tv_sec = 0, .tv_nsec = PAUSE_NS};
    uint64_t began = clock_ns();
    if (!agent_may_help(device, bytes, began)) return false;
    while (clock_ns() - began < AGENT_LOOKS_NS) {
        nanosleep(&pause, NULL);
        if (add(device, bytes)) return true;
    }
    return false;
}

static bool add_after_cleaning(int device, uint64_t bytes)
{
    cb_run_on_shortage(device);
    if (add(device, bytes)) return true;
    if (cb_processes_reap(device) > 0 && add(device, bytes)) return true;
    return add_with_the_agent(device, bytes);
}

bool cb_driver_lags(unsigned *tries)
{
    const struct timespec pause = {.tv_sec = 0, .tv_nsec = PAUSE_NS};
    if (*tries >= DRIVER_LAGS_NS / PAUSE_NS || cb.usage == NULL) return false;
    if (*tries == 0 &&
        !recently(__atomic_load_n(&cb.usage->reaped_ns, __ATOMIC_RELAXED), clock_ns(), AGENT_ALIVE_NS))
        return false;
    ++*tries;
    nanosleep(&pause, NULL);
    return true;
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
