/* Devices of the slice as NVML knows them. */
#ifndef CALABASH_SHIM_NVML_VIEW_H
#define CALABASH_SHIM_NVML_VIEW_H

#include "shim/base.h"

int cb_device_of_nvml(nvmlDevice_t handle); /* -1: not of the slice */
int cb_nvml_denied(void);

#endif
