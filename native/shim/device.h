/* Mapping of driver ordinals to the slot's devices. */
#ifndef CALABASH_SHIM_DEVICE_H
#define CALABASH_SHIM_DEVICE_H

#include "shim/base.h"
#include "shim/real.h"

void cb_devices_narrow(void); /* before cuInit: rewrite CUDA_VISIBLE_DEVICES to a list of this slot's UUIDs */
void cb_devices_learn(void);  /* after cuInit: fill device_of_ordinal */
static inline int cb_device_of(CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < cb.ordinal_count ? cb.device_of_ordinal[ordinal] : -1;
}
static inline int cb_device_current(void)
{
    CUdevice ordinal = 0;
    if (CB_UNLIKELY(cb.ordinal_count != 1) && CB_REAL(cuCtxGetDevice)(&ordinal) != CUDA_SUCCESS) return -1;
    return cb_device_of(ordinal);
}
/* The device, or -1 if it is only visible: no cap, no policy, nothing to charge. */
static inline int cb_device_charged(int device)
{
    if (device < 0) return -1;
    const struct cb_limits_device *limits = &cb.limits->device[device];
    bool held = limits->policy != CB_POLICY_NONE && limits->policy != CB_POLICY_METERED;
    return limits->memory_limit_bytes == 0 && !held ? -1 : device;
}

#endif
