/*
 * NVML as the tenant sees it: the devices of its slice, numbered from 0, with the memory of its slice.
 *
 * Handles are the driver's own, so every function that is not hooked reports the real values of a device of the
 * slice; a device outside the slice cannot be found. Functions that change a card are refused.
 */
#define _GNU_SOURCE
#include "shim/nvml_view.h"

#include "shim/charge.h"
#include "shim/pool.h"
#include "shim/real.h"
#include "shim/start.h"
#include "shim/visible_devices.h"

#include <string.h>

#define PARTS_MAX 64u /* more MIG devices than any card has */

int cb_nvml_denied(void)
{
    return NVML_ERROR_NO_PERMISSION;
}

/* The same function under each denied name, for programs that are linked with libnvidia-ml. */
#define CB_NAME(name)                                \
    extern int cb_denied_##name(void) __asm__(#name) \
        __attribute__((alias("cb_nvml_denied"), visibility("default")));
#include "shim/denied.inc"
#undef CB_NAME

static bool uuids_equal(const char *one, const char *other)
{
    return strncasecmp(one, other, sizeof(cb.limits->device[0].uuid)) == 0;
}

int cb_device_of_nvml(nvmlDevice_t handle)
{
    char uuid[96] = "";
    if (handle == NULL || CB_REAL(nvmlDeviceGetUUID) == NULL ||
        CB_REAL(nvmlDeviceGetUUID)(handle, uuid, sizeof(uuid)) != NVML_SUCCESS)
        return -1;
    for (uint32_t i = 0; i < cb.device_count; i++)
        if (cb_is_shown(i) && uuids_equal(uuid, cb.limits->device[i].uuid)) return (int)i;
    return -1;
}

nvmlReturn_t nvmlInit(void)
{
    CB_ENTER_NVML();
    return CB_REAL(nvmlInit)();
}

nvmlReturn_t nvmlInit_v2(void)
{
    CB_ENTER_NVML();
    return CB_REAL(nvmlInit_v2)();
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    CB_ENTER_NVML();
    return CB_REAL(nvmlInitWithFlags)(flags);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
    CB_ENTER_NVML();
    nvmlReturn_t result = CB_REAL(nvmlDeviceGetCount_v2)(deviceCount);
    if (result == NVML_SUCCESS) *deviceCount = cb_shown_count();
    return result;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *deviceCount)
{
    CB_ENTER_NVML();
    nvmlReturn_t result = CB_REAL(nvmlDeviceGetCount)(deviceCount);
    if (result == NVML_SUCCESS) *deviceCount = cb_shown_count();
    return result;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    char uuid[sizeof(cb.limits->device[0].uuid)];
    CB_ENTER_NVML();
    int place = index < CB_DEVICES_MAX ? cb_shown_device(index) : -1;
    if (place < 0) return NVML_ERROR_INVALID_ARGUMENT;
    memcpy(uuid, cb.limits->device[place].uuid, sizeof(uuid));
    uuid[sizeof(uuid) - 1] = 0;
    return CB_REAL(nvmlDeviceGetHandleByUUID)(uuid, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* Pass on a handle that the driver found another way, if it is in the slice. */
static nvmlReturn_t handle_if_in_slice(nvmlReturn_t result, nvmlDevice_t *device)
{
    if (result != NVML_SUCCESS || cb_device_of_nvml(*device) >= 0) return result;
    *device = NULL;
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    CB_ENTER_NVML();
    return handle_if_in_slice(CB_REAL(nvmlDeviceGetHandleByUUID)(uuid, device), device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
    CB_ENTER_NVML();
    return handle_if_in_slice(CB_REAL(nvmlDeviceGetHandleByUUIDV)(uuid, device), device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    CB_ENTER_NVML();
    return handle_if_in_slice(CB_REAL(nvmlDeviceGetHandleBySerial)(serial, device), device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
    CB_ENTER_NVML();
    return handle_if_in_slice(CB_REAL(nvmlDeviceGetHandleByPciBusId_v2)(pciBusId, device), device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *pciBusId, nvmlDevice_t *device)
{
    CB_ENTER_NVML();
    return handle_if_in_slice(CB_REAL(nvmlDeviceGetHandleByPciBusId)(pciBusId, device), device);
}

/* The driver numbers cards only; here a MIG device of the slice is numbered among them. */
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    CB_ENTER_NVML();
    nvmlReturn_t result = CB_REAL(nvmlDeviceGetIndex)(device, index);
    bool numbered = result == NVML_SUCCESS || result == NVML_ERROR_NOT_SUPPORTED;
    int ours = numbered && index != NULL ? cb_device_of_nvml(device) : -1;
    if (ours < 0) return result;
    *index = (unsigned int)cb_shown_number(ours);
    return NVML_SUCCESS;
}

/* The MIG devices of the slice, numbered from 0 on each card; others are hidden. */
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                 nvmlDevice_t *migDevice)
{
    unsigned int seen = 0;
    CB_ENTER_NVML();
    if (migDevice == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < PARTS_MAX; i++) {
        nvmlDevice_t found = NULL;
        nvmlReturn_t result = CB_REAL(nvmlDeviceGetMigDeviceHandleByIndex)(device, i, &found);
        if (result == NVML_ERROR_NOT_FOUND) continue;
        if (result == NVML_ERROR_INVALID_ARGUMENT && i > index) break; /* the card has no more */
        if (result != NVML_SUCCESS) return result;
        if (cb_device_of_nvml(found) < 0 || seen++ != index) continue;
        *migDevice = found;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

/*
 * Total and free memory of the slice. Return false if the device has no cap; then the card's own figures hold.
 */
static bool slice_memory(nvmlDevice_t handle, unsigned long long *total, unsigned long long *free)
{
    int device = cb_device_of_nvml(handle);
    if (device < 0) return false;
    cb_pools_settle();
    uint64_t limit, left = cb_limit_left(device, &limit);
    if (limit == 0) return false;
    if (left < *free || cb_spills(device)) *free = left;
    *total = limit;
    return true;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    CB_ENTER_NVML();
    nvmlReturn_t result = CB_REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    if (result == NVML_SUCCESS && slice_memory(device, &memory->total, &memory->free))
        memory->used = memory->total - memory->free;
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    CB_ENTER_NVML();
    nvmlReturn_t result = CB_REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    if (result == NVML_SUCCESS && slice_memory(device, &memory->total, &memory->free)) {
        memory->used = memory->total - memory->free;
        memory->reserved = 0;
    }
    return result;
}

/* Return the handles that are in the slice, in their order; the caller's buffer holds `capacity`. */
static nvmlReturn_t handles_in_slice(nvmlDevice_t *all, unsigned int found, unsigned int capacity,
                                     unsigned int *count, nvmlDevice_t *devices)
{
    unsigned int kept = 0;
    for (unsigned int i = 0; i < found; i++) {
        if (cb_device_of_nvml(all[i]) < 0) continue;
        if (devices != NULL && kept < capacity) devices[kept] = all[i];
        kept++;
    }
    *count = devices != NULL && kept > capacity ? capacity : kept;
    return NVML_SUCCESS;
}

#define NEAREST_MAX 256u

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                              unsigned int *count, nvmlDevice_t *deviceArray)
{
    nvmlDevice_t all[NEAREST_MAX];
    unsigned int found = NEAREST_MAX;
    CB_ENTER_NVML();
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = CB_REAL(nvmlDeviceGetTopologyNearestGpus)(device, level, &found, all);
    if (result != NVML_SUCCESS) return result;
    return handles_in_slice(all, found, *count, count, deviceArray);
}

nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpuNumber, unsigned int *count,
                                         nvmlDevice_t *deviceArray)
{
    nvmlDevice_t all[NEAREST_MAX];
    unsigned int found = NEAREST_MAX;
    CB_ENTER_NVML();
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = CB_REAL(nvmlSystemGetTopologyGpuSet)(cpuNumber, &found, all);
    if (result != NVML_SUCCESS) return result;
    return handles_in_slice(all, found, *count, count, deviceArray);
}
