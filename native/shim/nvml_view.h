/* Look-up of the slice's devices by NVML handle. */
#ifndef CALABASH_SHIM_NVML_VIEW_H
#define CALABASH_SHIM_NVML_VIEW_H

#include "shim/base.h"

int cb_device_of_nvml(nvmlDevice_t handle); /* -1: not in the slice */
int cb_nvml_denied(void);

#endif
