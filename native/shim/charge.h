/* The container's counter. A device of -1 is never charged and never denied; bytes are what cb_cost says. */
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
void cb_denied(int device);                          /* counts a refusal */
bool cb_reserve_quietly(int device, uint64_t bytes); /* as the next, but a refusal is not yet final */
bool cb_reserve(int device, uint64_t bytes);         /* before the driver is called */
void cb_commit(int device, uint64_t bytes);          /* the driver has allocated */
void cb_cancel(int device, uint64_t bytes);          /* the driver has refused */
void cb_uncharge(int device, uint64_t bytes);        /* the driver has freed */
/* After the driver has refused what was reserved: whether it may still hold the memory of a process that has
 * just died. Waits for a moment then; call the driver again. `*tries` begins at 0. */
bool cb_driver_lags(unsigned *tries);
#define CB_CALL_DRIVER(result, call)                                                          \
    do {                                                                                      \
        unsigned tries_ = 0;                                                                  \
        do {                                                                                  \
            result = call;                                                                    \
        } while (CB_UNLIKELY(result == CUDA_ERROR_OUT_OF_MEMORY) && cb_driver_lags(&tries_)); \
    } while (0)
bool cb_true_up(int device, uint64_t from, uint64_t to); /* a charge turns out to be another size */
uint64_t cb_limit_left(int device,
                       uint64_t *limit); /* bytes free under the cap; *limit: the cap, 0 for none */

#endif
