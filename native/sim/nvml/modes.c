/* Modes that an administrator sets, and the PCI Express link. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/nvml/activity.h"
#include "sim/nvml/core.h"

#include <unistd.h>

#define PCIE_KB_PER_S(bps) ((unsigned int)((bps) / 1000))

NVML_API nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(mode);
    *mode = t.device->persistence_mode ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    NV_TARGET(t, device, NV_CARD);
    if (geteuid() != 0) return NVML_ERROR_NO_PERMISSION;
    if (mode > NVML_FEATURE_ENABLED) return NVML_ERROR_INVALID_ARGUMENT;
    __atomic_store_n(&t.device->persistence_mode, (uint32_t)mode, __ATOMIC_RELAXED);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(mode);
    *mode = (nvmlComputeMode_t)t.device->compute_mode;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
    NV_TARGET(t, device, NV_CARD);
    if (geteuid() != 0) return NVML_ERROR_NO_PERMISSION;
    if (mode >= NVML_COMPUTEMODE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD) return NVML_ERROR_NOT_SUPPORTED;
    __atomic_store_n(&t.device->compute_mode, (uint32_t)mode, __ATOMIC_RELAXED);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(mode);
    *mode = NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    return nvmlDeviceGetDisplayMode(device, mode);
}

/* Accounting is off and cannot be turned on. */
NVML_API nvmlDeviceGetAccountingMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    return nvmlDeviceGetDisplayMode(device, mode);
}

/*
 * Features that these cards do not have, with the real driver's result: fans of their own, and driver models,
 * which are for Windows.
 */
static nvmlReturn_t feature_not_supported(nvmlDevice_t device)
{
    NV_TARGET(t, device, NV_CARD);
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned int *speed)
{
    (void)speed;
    return feature_not_supported(device);
}

NVML_API nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *speed)
{
    (void)fan;
    (void)speed;
    return feature_not_supported(device);
}

NVML_API nvmlDeviceGetDriverModel_v2(nvmlDevice_t device, nvmlDriverModel_t *now, nvmlDriverModel_t *pending)
{
    (void)now;
    (void)pending;
    return feature_not_supported(device);
}

NVML_API nvmlDeviceGetDriverModel(nvmlDevice_t device, nvmlDriverModel_t *now, nvmlDriverModel_t *pending)
{
    return nvmlDeviceGetDriverModel_v2(device, now, pending);
}

/* From Turing on, the driver's firmware part runs on the card. */
NVML_API nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned int *enabled, unsigned int *by_default)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(enabled);
    NV_NEED(by_default);
    *enabled = *by_default = t.device->profile.architecture >= NVML_DEVICE_ARCH_TURING;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
    NV_TARGET(t, device, NV_CARD);
    if (t.device->profile.architecture < NVML_DEVICE_ARCH_TURING) return NVML_ERROR_NOT_SUPPORTED;
    return nv_copy(version, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE, t.sim->node->driver_version);
}

NVML_API nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(generation);
    *generation = t.device->profile.pcie_gen;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetGpuMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation)
{
    return nvmlDeviceGetMaxPcieLinkGeneration(device, generation);
}

NVML_API nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation)
{
    return nvmlDeviceGetMaxPcieLinkGeneration(device, generation);
}

NVML_API nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int *width)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(width);
    *width = t.device->profile.pcie_width;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int *width)
{
    return nvmlDeviceGetMaxPcieLinkWidth(device, width);
}

/* Megatransfers per second of one lane, by generation. */
static unsigned int lane_speed(uint32_t generation)
{
    static const unsigned int speeds[] = {0, 2500, 5000, 8000, 16000, 32000, 64000};

    return generation < sizeof speeds / sizeof speeds[0] ? speeds[generation] : 0;
}

NVML_API nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned int *speed)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(speed);
    *speed = lane_speed(t.device->profile.pcie_gen);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetPcieLinkMaxSpeed(nvmlDevice_t device, unsigned int *speed)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(speed);
    switch (t.device->profile.pcie_gen) {
    case 3:
        *speed = NVML_PCIE_LINK_MAX_SPEED_8000MBPS;
        return NVML_SUCCESS;
    case 4:
        *speed = NVML_PCIE_LINK_MAX_SPEED_16000MBPS;
        return NVML_SUCCESS;
    default:
        *speed = NVML_PCIE_LINK_MAX_SPEED_32000MBPS;
        return NVML_SUCCESS;
    }
}

NVML_API nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned int *value)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(value);
    if (counter >= NVML_PCIE_UTIL_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    *value =
        PCIE_KB_PER_S((double)t.device->profile.host_bandwidth_bps * nv_copy_ratio(&t, NVML_SECOND_NS) / 2);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned int *value)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(value);
    *value = 0;
    return NVML_SUCCESS;
}
