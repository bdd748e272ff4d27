/* Visible devices: the devices of the slot that this container may see; see visible_devices.c. */
#ifndef CALABASH_SHIM_VISIBLE_DEVICES_H
#define CALABASH_SHIM_VISIBLE_DEVICES_H

#include "shim/base.h"

bool cb_shown_learn(uint32_t device_count); /* return false after a message by cb_say */
static inline bool cb_is_shown(uint32_t device)
{
    return (cb.shown >> device & 1u) != 0;
}
/* Number of visible devices. */
static inline uint32_t cb_shown_count(void)
{
    return (uint32_t)__builtin_popcount(cb.shown);
}
/* The slot's device that is visible under a number; -1: none. */
static inline int cb_shown_device(uint32_t number)
{
    for (uint32_t device = 0; device < cb.device_count; device++)
        if (cb_is_shown(device) && number-- == 0) return (int)device;
    return -1;
}
/* The number under which a device is visible. */
static inline int cb_shown_number(int device)
{
    return __builtin_popcount(cb.shown & ((1u << device) - 1));
}

#endif
