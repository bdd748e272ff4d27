/*
 * Charging of the container's memory counter. A device of -1 is never charged and never refused; amounts are
 * those of cb_cost.
 */
#ifndef CALABASH_SHIM_CHARGE_H
#define CALABASH_SHIM_CHARGE_H

#include "shim/base.h"

static inline uint64_t cb_cost(uint64_t bytes)
{
    const uint64_t large = 2ull << 20;
    if (bytes >= 1ull << 20)
        return bytes > UINT64_MAX - large ? UINT64_MAX : (bytes + large - 1) & ~(large - 1);
    return bytes == 0 ? 512 : (bytes + 511) & ~511ull;
}
/* The cap with the spill limit included; 0: none. */
static inline uint64_t cb_cap(const struct cb_limits_device *limits)
{
    return __atomic_load_n(&limits->memory_limit_bytes, __ATOMIC_ACQUIRE) +
           __atomic_load_n(&limits->spill_limit_bytes, __ATOMIC_RELAXED);
}
static inline bool cb_spills(int device)
{
    return device >= 0 &&
           __atomic_load_n(&cb.limits->device[device].spill_limit_bytes, __ATOMIC_RELAXED) != 0;
}
/*
 * A charge for managed memory is passed as CB_PAGEABLE(device), a number below -1. The functions that return
 * charges accept both.
 */
#define CB_PAGEABLE(device) (-2 - (device))
static inline int cb_device_of_charge(int device)
{
    return device < -1 ? CB_PAGEABLE(device) : device;
}
void cb_denied(int device); /* count a refusal */
/* as cb_reserve, but a refusal is not yet final: it is not counted */
bool cb_reserve_quietly(int device, uint64_t bytes);
bool cb_reserve(int device, uint64_t bytes); /* before the driver is called */
/*
 * The same for memory that the driver could page. Return false if the slice spills: then call
 * cb_reserve_beyond, which sets *device according to whether managed memory is to be used.
 */
bool cb_reserve_linear(int device, uint64_t bytes);
bool cb_reserve_beyond(int *device, uint64_t bytes);
/* Reserve for another process of the slice, which has held as much before. */
bool cb_reserve_for(uint32_t slot, int device, uint64_t bytes);
void cb_commit(int device, uint64_t bytes);   /* the driver has allocated */
void cb_cancel(int device, uint64_t bytes);   /* the driver has refused */
void cb_uncharge(int device, uint64_t bytes); /* the driver has freed */
/*
 * After the driver has refused reserved memory: return true if it may still hold the memory of a process that
 * has just died, after a short wait; then call the driver again. `*tries` starts at 0.
 */
bool cb_driver_lags(unsigned *tries);
#define CB_CALL_DRIVER(result, call)                                                          \
    do {                                                                                      \
        unsigned tries_ = 0;                                                                  \
        do {                                                                                  \
            result = call;                                                                    \
        } while (CB_UNLIKELY(result == CUDA_ERROR_OUT_OF_MEMORY) && cb_driver_lags(&tries_)); \
    } while (0)
bool cb_true_up(int device, uint64_t from,
                uint64_t to); /* change the size of a charge to what the driver took */
/* Bytes free under the cap, after the memory of dead processes was freed; *limit: the cap, 0 for none. */
uint64_t cb_limit_left(int device, uint64_t *limit);

#endif
