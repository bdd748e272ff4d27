/* Which of the slot's devices this container is shown; see shown.c. */
#ifndef CALABASH_SHIM_SHOWN_H
#define CALABASH_SHIM_SHOWN_H

#include "shim/base.h"

bool cb_shown_learn(uint32_t device_count); /* false after cb_say */
static inline bool cb_is_shown(uint32_t device)
{
    return (cb.shown >> device & 1u) != 0;
}
/* How many devices are shown. */
static inline uint32_t cb_shown_count(void)
{
    return (uint32_t)__builtin_popcount(cb.shown);
}
/* The slot's device that is shown under a number; -1: there are not so many. */
static inline int cb_shown_device(uint32_t number)
{
    for (uint32_t device = 0; device < cb.device_count; device++)
        if (cb_is_shown(device) && number-- == 0) return (int)device;
    return -1;
}
/* The number under which a device is shown. */
static inline int cb_shown_number(int device)
{
    return __builtin_popcount(cb.shown & ((1u << device) - 1));
}

#endif
