/* Memory errors: ECC modes and counters, retired pages, remapped rows. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/nvml/core.h"

#include <string.h>
#include <unistd.h>

#define ROW_REMAP_BANKS 640u /* five stacks of 128 banks; the classes of the histogram add up to it */

NVML_API nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *now, nvmlEnableState_t *pending)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(now);
    NV_NEED(pending);
    if (!t.device->profile.ecc_capable) return NVML_ERROR_NOT_SUPPORTED;
    *now = t.device->ecc_mode ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    *pending = t.device->ecc_mode_pending ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(mode);
    *mode = t.device->profile.ecc_capable ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceSetEccMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    NV_TARGET(t, device, NV_CARD);
    if (geteuid() != 0) return NVML_ERROR_NO_PERMISSION;
    if (mode > NVML_FEATURE_ENABLED) return NVML_ERROR_INVALID_ARGUMENT;
    __atomic_store_n(&t.device->ecc_mode_pending, (uint32_t)mode, __ATOMIC_RELAXED);
    return NVML_SUCCESS;
}

static nvmlReturn_t ecc_count(const struct sim_device *d, nvmlMemoryErrorType_t type,
                              nvmlEccCounterType_t counter, unsigned long long *count)
{
    const struct sim_faults *f = &d->faults;

    if (!d->ecc_mode) return NVML_ERROR_NOT_SUPPORTED;
    if (type >= NVML_MEMORY_ERROR_TYPE_COUNT || counter >= NVML_ECC_COUNTER_TYPE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (type == NVML_MEMORY_ERROR_TYPE_CORRECTED)
        *count = counter == NVML_VOLATILE_ECC ? f->ecc_volatile_sbe : f->ecc_aggregate_sbe;
    else
        *count = counter == NVML_VOLATILE_ECC ? f->ecc_volatile_dbe : f->ecc_aggregate_dbe;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                     nvmlEccCounterType_t counter, unsigned long long *count)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(count);
    return ecc_count(t.device, type, counter, count);
}

/* Injected errors are errors of device memory; other locations never fail. */
NVML_API nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                         nvmlEccCounterType_t counter, nvmlMemoryLocation_t location,
                                         unsigned long long *count)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(count);
    if (location >= NVML_MEMORY_LOCATION_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = ecc_count(t.device, type, counter, count);

    if (result == NVML_SUCCESS && location != NVML_MEMORY_LOCATION_DEVICE_MEMORY) *count = 0;
    return result;
}

NVML_API nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                        nvmlEccCounterType_t counter, nvmlEccErrorCounts_t *counts)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(counts);
    memset(counts, 0, sizeof *counts);
    return ecc_count(t.device, type, counter, &counts->deviceMemory);
}

NVML_API nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, nvmlEccCounterType_t counter)
{
    NV_TARGET(t, device, NV_CARD);
    if (geteuid() != 0) return NVML_ERROR_NO_PERMISSION;
    if (counter >= NVML_ECC_COUNTER_TYPE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    struct sim_faults *f = &t.device->faults;

    sim_lock_device(t.sim, t.index);
    if (counter == NVML_VOLATILE_ECC)
        f->ecc_volatile_sbe = f->ecc_volatile_dbe = 0;
    else
        f->ecc_aggregate_sbe = f->ecc_aggregate_dbe = 0;
    sim_unlock_device(t.sim, t.index);
    return NVML_SUCCESS;
}

/* Cards before Ampere retire pages, here none; later ones remap rows instead. */
NVML_API nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                   unsigned long long *addresses)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(count);
    (void)addresses;
    if (cause >= NVML_PAGE_RETIREMENT_CAUSE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    if (t.card->remapping) return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause,
                                      unsigned int *count, unsigned long long *addresses,
                                      unsigned long long *timestamps)
{
    (void)timestamps;
    return nvmlDeviceGetRetiredPages(device, cause, count, addresses);
}

NVML_API nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *pending)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(pending);
    if (t.card->remapping) return NVML_ERROR_NOT_SUPPORTED;
    *pending = t.device->faults.retired_pages_pending ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
                                   unsigned int *uncorrectable, unsigned int *pending, unsigned int *failed)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(correctable);
    NV_NEED(uncorrectable);
    NV_NEED(pending);
    NV_NEED(failed);
    if (!t.card->remapping) return NVML_ERROR_NOT_SUPPORTED;
    *correctable = t.device->faults.remapped_rows_correctable;
    *uncorrectable = t.device->faults.remapped_rows_uncorrectable;
    *pending = t.device->faults.remapped_rows_pending > 0;
    *failed = t.device->faults.remap_failed;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(values);
    if (!t.card->remapping) return NVML_ERROR_NOT_SUPPORTED;
    uint32_t used = t.device->faults.remapped_rows_correctable + t.device->faults.remapped_rows_uncorrectable;

    memset(values, 0, sizeof *values);
    values->high = used < ROW_REMAP_BANKS ? used : ROW_REMAP_BANKS;
    values->max = ROW_REMAP_BANKS - values->high;
    return NVML_SUCCESS;
}
