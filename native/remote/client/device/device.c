/*
 * Hooks of devices, answered from the description that the worker sent when the session began; no question is
 * sent.
 */
#include "remote/client/connection/session.h"
#include "remote/client/device/device_snapshot.h"

#include <stdio.h>

#define DEVICE_OR_RETURN(d, dev)                                \
    const struct cb_device *d = cb_device_of(dev);              \
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED; \
    if (!d) return CUDA_ERROR_INVALID_DEVICE

EXPORT CUresult cuInit(unsigned int flags)
{
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (cb_session_forked())
        return CUDA_ERROR_NOT_INITIALIZED; /* as with any driver: a forked child has no devices */
    if (!cb_session_open()) return CUDA_ERROR_NO_DEVICE;
    return cb_snapshot.devices ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

EXPORT CUresult cuDriverGetVersion(int *driverVersion)
{
    if (!driverVersion) return CUDA_ERROR_INVALID_VALUE;
    if (!cb_session_open()) return CUDA_ERROR_NO_DEVICE;
    *driverVersion = cb_snapshot.driver_version < CUDA_VERSION ? cb_snapshot.driver_version : CUDA_VERSION;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = cb_snapshot.devices;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    DEVICE_OR_RETURN(d, ordinal);
    (void)d;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    if (!name || len <= 0) return CUDA_ERROR_INVALID_VALUE;
    strncpy(name, d->name, (size_t)len);
    name[len - 1] = 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    *uuid = d->uuid[0];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    *uuid = d->uuid[1];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetLuid(char *luid, unsigned int *deviceNodeMask, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    if (d->luid.result != CUDA_SUCCESS) return d->luid.result;
    if (!luid || !deviceNodeMask) return CUDA_ERROR_INVALID_VALUE;
    memcpy(luid, d->luid_bytes, sizeof d->luid_bytes);
    *deviceNodeMask = d->luid_mask;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *bytes = d->memory_bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    if (!pi || (int)attrib < 0 || (int)attrib >= CB_ATTRIBUTES_MAX) return CUDA_ERROR_INVALID_VALUE;
    if (d->attribute[attrib].result == CUDA_SUCCESS) *pi = d->attribute[attrib].value;
    return d->attribute[attrib].result;
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
    *major = d->attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR].value;
    *minor = d->attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR].value;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    if (!prop) return CUDA_ERROR_INVALID_VALUE;
    *prop = d->properties;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    if (!pciBusId || len <= (int)strlen(d->pci)) return CUDA_ERROR_INVALID_VALUE;
    strcpy(pciBusId, d->pci);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
    unsigned int domain = 0, bus = 0, device = 0;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!dev || !pciBusId) return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &device) != 3) {
        domain = 0;
        if (sscanf(pciBusId, "%x:%x", &bus, &device) != 2) return CUDA_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < cb_snapshot.devices; i++) {
        const struct cb_attribute *a = cb_snapshot.device[i].attribute;
        if ((unsigned)a[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID].value != domain ||
            (unsigned)a[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID].value != bus ||
            (unsigned)a[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID].value != device)
            continue;
        *dev = i;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
    DEVICE_OR_RETURN(d, dev);
    if (!cb_device_of(peerDev)) return CUDA_ERROR_INVALID_DEVICE;
    if (!canAccessPeer) return CUDA_ERROR_INVALID_VALUE;
    *canAccessPeer = d->peer[peerDev][0].value;
    return d->peer[peerDev][0].result;
}

EXPORT CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice,
                                        CUdevice dstDevice)
{
    DEVICE_OR_RETURN(d, srcDevice);
    if (!cb_device_of(dstDevice)) return CUDA_ERROR_INVALID_DEVICE;
    if (!value || (int)attrib < 1 || (int)attrib > 7) return CUDA_ERROR_INVALID_VALUE;
    if (d->peer[dstDevice][attrib].result == CUDA_SUCCESS) *value = d->peer[dstDevice][attrib].value;
    return d->peer[dstDevice][attrib].result;
}
