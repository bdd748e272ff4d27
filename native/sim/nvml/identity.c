/* Identity of cards: handles by index, UUID, PCI address and serial number, and the data of the board. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/node/mig.h"
#include "sim/nvml/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PCI_CLASS_DISPLAY 0x03u
#define PCI_SUBCLASS_3D   0x02u
#define UUID_BINARY_TYPE  2u

NVML_API nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    struct sim *s = nv_node();

    if (s == NULL) return NVML_ERROR_UNINITIALIZED;
    NV_NEED(device);
    if (index >= s->node->device_count) return NVML_ERROR_INVALID_ARGUMENT;
    *device = nv_device_handle(index);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static nvmlReturn_t mig_find(const struct sim_node *node, const char *uuid, nvmlDevice_t *device)
{
    for (uint32_t i = 0; i < node->device_count; i++)
        for (uint32_t k = 0; k < SIM_CI_MAX; k++) {
            const struct sim_ci *c = &node->device[i].mig.ci[k];

            if (!c->used || strncasecmp(uuid, c->uuid, sizeof c->uuid) != 0) continue;
            *device = nv_mig_handle(i, k);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    struct sim *s = nv_node();

    if (s == NULL) return NVML_ERROR_UNINITIALIZED;
    NV_NEED(uuid);
    NV_NEED(device);
    if (strncasecmp(uuid, "MIG-", 4) == 0) return mig_find(s->node, uuid, device);
    for (uint32_t i = 0; i < s->node->device_count; i++) {
        if (strcasecmp(uuid, s->node->device[i].profile.uuid) != 0) continue;
        *device = nv_device_handle(i);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
    struct sim *s = nv_node();

    if (s == NULL) return NVML_ERROR_UNINITIALIZED;
    NV_NEED(uuid);
    NV_NEED(device);
    if (uuid->type != UUID_BINARY_TYPE) return nvmlDeviceGetHandleByUUID(uuid->value.str, device);
    for (uint32_t i = 0; i < s->node->device_count; i++) {
        if (memcmp(uuid->value.bytes, s->node->device[i].profile.uuid_bytes, 16) != 0) continue;
        *device = nv_device_handle(i);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

/* "00000000:07:00.0", "0000:07:00.0" and "07:00.0" are the same address. */
static int pci_address_matches(const char *text, const struct sim_profile *p)
{
    unsigned int domain = 0, bus, device, function = 0;
    int used = 0;

    if (sscanf(text, "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &used) < 4 ||
        text[used] != '\0') {
        domain = 0;
        used = 0;
        if (sscanf(text, "%2x:%2x.%1x%n", &bus, &device, &function, &used) < 3 || text[used] != '\0')
            return 0;
    }
    return domain == p->pci_domain && bus == p->pci_bus && device == p->pci_device && function == 0;
}

NVML_API nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    struct sim *s = nv_node();

    if (s == NULL) return NVML_ERROR_UNINITIALIZED;
    NV_NEED(bus_id);
    NV_NEED(device);
    for (uint32_t i = 0; i < s->node->device_count; i++) {
        if (!pci_address_matches(bus_id, &s->node->device[i].profile)) continue;
        *device = nv_device_handle(i);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

NVML_API nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    struct sim *s = nv_node();

    if (s == NULL) return NVML_ERROR_UNINITIALIZED;
    NV_NEED(serial);
    NV_NEED(device);
    for (uint32_t i = 0; i < s->node->device_count; i++) {
        if (strcmp(serial, s->node->device[i].profile.serial) != 0) continue;
        *device = nv_device_handle(i);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    NV_TARGET(t, device, NV_CARD | NV_MIG | NV_LOST);
    char text[NVML_DEVICE_NAME_V2_BUFFER_SIZE];

    if (!t.mig) return nv_copy(name, length, t.device->profile.name);
    char profile[24];

    if (!sim_ci_name(t.device, &t.device->mig.ci[t.ci], profile, sizeof profile)) return NVML_ERROR_UNKNOWN;
    snprintf(text, sizeof text, "%s MIG %s", t.device->profile.name, profile);
    return nv_copy(name, length, text);
}

NVML_API nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    NV_TARGET(t, device, NV_CARD | NV_MIG | NV_LOST);
    return nv_copy(uuid, length, t.mig ? t.device->mig.ci[t.ci].uuid : t.device->profile.uuid);
}

NVML_API nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    NV_TARGET(t, device, NV_CARD | NV_LOST);
    NV_NEED(index);
    *index = t.index;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    NV_TARGET(t, device, NV_CARD | NV_LOST);
    NV_NEED(minor);
    *minor = t.device->profile.minor_number;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetModuleId(nvmlDevice_t device, unsigned int *module)
{
    NV_TARGET(t, device, NV_CARD | NV_LOST);
    NV_NEED(module);
    *module = t.index + 1;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned int *board)
{
    NV_TARGET(t, device, NV_CARD | NV_LOST);
    NV_NEED(board);
    *board = t.device->profile.pci_domain << 16 | t.device->profile.pci_bus << 8;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned int *multiple)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(multiple);
    *multiple = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    NV_TARGET(t, device, NV_CARD | NV_LOST);
    return nv_copy(serial, length, t.device->profile.serial);
}

NVML_API nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *part, unsigned int length)
{
    NV_TARGET(t, device, NV_CARD);
    return nv_copy(part, length, t.device->profile.board_part);
}

NVML_API nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
    NV_TARGET(t, device, NV_CARD);
    return nv_copy(version, length, t.device->profile.vbios);
}

NVML_API nvmlDeviceGetInforomImageVersion(nvmlDevice_t device, char *version, unsigned int length)
{
    NV_TARGET(t, device, NV_CARD);
    return nv_copy(version, length, "G500.0200.00.03");
}

NVML_API nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *brand)
{
    NV_TARGET(t, device, NV_CARD | NV_MIG);
    NV_NEED(brand);
    *brand = t.device->profile.brand;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *architecture)
{
    NV_TARGET(t, device, NV_CARD | NV_MIG);
    NV_NEED(architecture);
    *architecture = t.device->profile.architecture;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    NV_TARGET(t, device, NV_CARD | NV_MIG);
    NV_NEED(major);
    NV_NEED(minor);
    *major = (int)t.device->profile.compute_major;
    *minor = (int)t.device->profile.compute_minor;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *cores)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(cores);
    *cores = t.device->profile.sm_count * t.device->profile.cores_per_sm;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned int *width)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(width);
    *width = t.device->profile.memory_bus_bits;
    return NVML_SUCCESS;
}

static void pci_fill(const struct sim_profile *p, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->domain = p->pci_domain;
    pci->bus = p->pci_bus;
    pci->device = p->pci_device;
    pci->pciDeviceId = p->pci_device_id;
    pci->pciSubSystemId = p->pci_subsystem_id;
    snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT, p->pci_domain, p->pci_bus,
             p->pci_device);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT,
             p->pci_domain & 0xFFFF, p->pci_bus & 0xFF, p->pci_device & 0xFF);
}

NVML_API nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    NV_TARGET(t, device, NV_CARD | NV_LOST);
    NV_NEED(pci);
    pci_fill(&t.device->profile, pci);
    return NVML_SUCCESS;
}

/* The first two versions end before busId, and the first before the subsystem's ID. */
static nvmlReturn_t pci_info_truncated(nvmlDevice_t device, nvmlPciInfo_t *pci, size_t size)
{
    nvmlPciInfo_t full;

    NV_NEED(pci);
    nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &full);

    if (result == NVML_SUCCESS) memcpy(pci, &full, size);
    return result;
}

NVML_API nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return pci_info_truncated(device, pci, offsetof(nvmlPciInfo_t, busId));
}

NVML_API nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return pci_info_truncated(device, pci, offsetof(nvmlPciInfo_t, pciSubSystemId));
}

NVML_API nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
    NV_TARGET(t, device, NV_CARD | NV_LOST);
    NV_NEED(pci);
    if (pci->version != nvmlPciInfoExt_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct sim_profile *p = &t.device->profile;

    pci->domain = p->pci_domain;
    pci->bus = p->pci_bus;
    pci->device = p->pci_device;
    pci->pciDeviceId = p->pci_device_id;
    pci->pciSubSystemId = p->pci_subsystem_id;
    pci->baseClass = PCI_CLASS_DISPLAY;
    pci->subClass = PCI_SUBCLASS_3D;
    snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT, p->pci_domain, p->pci_bus,
             p->pci_device);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetBusType(nvmlDevice_t device, nvmlBusType_t *type)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(type);
    *type = NVML_BUS_TYPE_PCIE;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t *mode)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(mode);
    *mode = NVML_GPU_VIRTUALIZATION_MODE_NONE;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceOnSameBoard(nvmlDevice_t device1, nvmlDevice_t device2, int *same)
{
    NV_TARGET(a, device1, NV_CARD);
    NV_TARGET(b, device2, NV_CARD);
    NV_NEED(same);
    *same = a.index == b.index;
    return NVML_SUCCESS;
}
