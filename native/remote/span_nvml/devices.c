/* Enumeration of devices. */
#include "remote/span_nvml/nvml.h"

typedef nvmlReturn_t (*by_text)(const char *, nvmlDevice_t *);

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
    unsigned int sum = 0;
    if (!span_nvml_users) return NVML_ERROR_UNINITIALIZED;
    if (!deviceCount) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < span_count; i++)
        sum += span_nvml_devices(&span_sessions[i]);
    *deviceCount = sum;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *deviceCount)
{
    return nvmlDeviceGetCount_v2(deviceCount);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (!span_nvml_users) return NVML_ERROR_UNINITIALIZED;
    if (!device) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < span_count; i++) {
        const struct span_session *s = &span_sessions[i];
        if (index < span_nvml_devices(s)) {
            nvmlReturn_t result = SPAN_NVML(s, nvmlDeviceGetHandleByIndex_v2)(index, device);
            if (result == NVML_SUCCESS) *device = span_nvml_outer(s, *device);
            return result;
        }
        index -= span_nvml_devices(s);
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    const struct span_session *s = span_nvml_of(device);
    if (!span_nvml_users) return NVML_ERROR_UNINITIALIZED;
    if (!s) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = SPAN_NVML(s, nvmlDeviceGetIndex)(span_nvml_inner(device), index);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < s->member - 1; i++)
        *index += span_nvml_devices(&span_sessions[i]);
    return result;
}

/* Ask the sessions in order; return the result of the first that knows the device. */
static nvmlReturn_t device_find(int function, const char *text, nvmlDevice_t *device)
{
    nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;
    for (unsigned int i = 0; span_nvml_users && i < span_count; i++) {
        const struct span_session *s = &span_sessions[i];
        result = ((by_text)span_nvml_function(s, function))(text, device);
        if (result == NVML_SUCCESS) *device = span_nvml_outer(s, *device);
        if (result != NVML_ERROR_NOT_FOUND) return result;
    }
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return device_find(CB_NVML_nvmlDeviceGetHandleByUUID, uuid, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    return device_find(CB_NVML_nvmlDeviceGetHandleBySerial, serial, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *pciBusId, nvmlDevice_t *device)
{
    return device_find(CB_NVML_nvmlDeviceGetHandleByPciBusId, pciBusId, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
    return device_find(CB_NVML_nvmlDeviceGetHandleByPciBusId_v2, pciBusId, device);
}

/* ---- between two devices ---- */

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2,
                                           nvmlGpuP2PCapsIndex_t p2pIndex, nvmlGpuP2PStatus_t *p2pStatus)
{
    const struct span_session *a = span_nvml_of(device1), *b = span_nvml_of(device2);
    if (!span_nvml_users) return NVML_ERROR_UNINITIALIZED;
    if (!a || !b || !p2pStatus) return NVML_ERROR_INVALID_ARGUMENT;
    if (a == b)
        return SPAN_NVML(a, nvmlDeviceGetP2PStatus)(span_nvml_inner(device1), span_nvml_inner(device2),
                                                    p2pIndex, p2pStatus);
    *p2pStatus = NVML_P2P_STATUS_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device1, nvmlDevice_t device2, int *onSameBoard)
{
    const struct span_session *a = span_nvml_of(device1), *b = span_nvml_of(device2);
    if (!span_nvml_users) return NVML_ERROR_UNINITIALIZED;
    if (!a || !b || !onSameBoard) return NVML_ERROR_INVALID_ARGUMENT;
    if (a == b)
        return SPAN_NVML(a, nvmlDeviceOnSameBoard)(span_nvml_inner(device1), span_nvml_inner(device2),
                                                   onSameBoard);
    *onSameBoard = 0;
    return NVML_SUCCESS;
}
