/* Driver calls about devices: names, identities and peers, from the node's profile. */
#include "sim/cuda/memory/array.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/process.h"
#include "sim/node/mig.h"

#include <stdio.h>

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (!device_get(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = process.device_count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    if (!name || len <= 0) return CUDA_ERROR_INVALID_VALUE;
    char profile[24];
    if (d->ci && sim_ci_name(d->shared, d->ci, profile, sizeof profile))
        snprintf(name, (size_t)len, "%s MIG %s", d->shared->profile.name, profile);
    else
        snprintf(name, (size_t)len, "%s", d->shared->profile.name);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    *uuid = d->uuid;
    return CUDA_SUCCESS;
}

/* The first version returns the UUID of the card, also for a MIG device. */
EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    memcpy(uuid->bytes, d->shared->profile.uuid_bytes, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetLuid(char *luid, unsigned int *deviceNodeMask, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    (void)luid;
    (void)deviceNodeMask;
    return CUDA_ERROR_NOT_SUPPORTED; /* Windows only, on real cards too */
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    return device_total(d, bytes);
}

EXPORT CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    if (!pciBusId || len < 13) return CUDA_ERROR_INVALID_VALUE;
    const struct sim_profile *p = &d->shared->profile;
    snprintf(pciBusId, (size_t)len, "%04X:%02X:%02X.0", p->pci_domain & 0xFFFF, p->pci_bus & 0xFF,
             p->pci_device & 0xFF);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
    unsigned int domain = 0, bus = 0, device = 0;
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!dev || !pciBusId) return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &device) != 3) {
        domain = 0;
        if (sscanf(pciBusId, "%x:%x", &bus, &device) != 2) return CUDA_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < process.device_count; i++) {
        const struct sim_profile *p = &process.device[i].shared->profile;
        if (p->pci_domain == domain && p->pci_bus == bus && p->pci_device == device) {
            *dev = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
    *major = (int)d->shared->profile.compute_major;
    *minor = (int)d->shared->profile.compute_minor;
    return CUDA_SUCCESS;
}

/* ---- attributes ---- */

EXPORT CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    if (!prop) return CUDA_ERROR_INVALID_VALUE;
    *prop = (CUdevprop){.maxThreadsPerBlock = 1024,
                        .maxThreadsDim = {1024, 1024, 64},
                        .maxGridSize = {2147483647, 65535, 65535},
                        .sharedMemPerBlock = 49152,
                        .totalConstantMemory = 65536,
                        .SIMDWidth = 32,
                        .memPitch = 2147483647,
                        .regsPerBlock = 65536,
                        .clockRate = (int)d->shared->profile.sm_clock_max_mhz * 1000,
                        .textureAlign = 512};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *maxWidthInElements, CUarray_format format,
                                                   unsigned numChannels, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    (void)d;
    size_t element = format_bytes(format) * numChannels;
    if (!maxWidthInElements || element == 0) return CUDA_ERROR_INVALID_VALUE;
    *maxWidthInElements = (1ull << 31) / element;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetExecAffinitySupport(int *pi, CUexecAffinityType type, CUdevice dev)
{
    DEVICE_OR_RETURN(d, dev);
    (void)d;
    (void)type;
    if (!pi) return CUDA_ERROR_INVALID_VALUE;
    *pi = 0;
    return CUDA_SUCCESS;
}

/* ---- peers ---- */

static bool devices_are_linked(const struct device *a, const struct device *b)
{
    return (a->shared->profile.nvlink_peer_mask >> b->index) & 1;
}

EXPORT CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
    DEVICE_OR_RETURN(a, dev);
    DEVICE_OR_RETURN(b, peerDev);
    if (!canAccessPeer) return CUDA_ERROR_INVALID_VALUE;
    bool divided = a->instance >= 0 || b->instance >= 0;
    *canAccessPeer = a != b && !divided && a->shared->profile.compute_major >= 6;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice,
                                        CUdevice dstDevice)
{
    DEVICE_OR_RETURN(a, srcDevice);
    DEVICE_OR_RETURN(b, dstDevice);
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (a == b) return CUDA_ERROR_INVALID_DEVICE;
    switch (attrib) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
        *value = devices_are_linked(a, b) ? 0 : 1;
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
        return cuDeviceCanAccessPeer(value, srcDevice, dstDevice);
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        *value = devices_are_linked(a, b);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}
