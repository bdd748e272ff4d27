/* Connections between cards: NVLink, PCI Express topology, NUMA. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/node/device_build.h"
#include "sim/nvml/core.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SWITCH_BUS    0xF0u /* the switches' bus, behind that of every card */
#define SWITCH_ID     0x22A310DEu
#define BITS_PER_LONG (8 * sizeof(unsigned long))

/* The far end of a link: a device index, or these. */
enum far_end { FAR_NONE = -1, FAR_SWITCH = -2 };

static int far_end(const struct nv_target *t, unsigned int link)
{
    const struct sim_profile *p = &t->device->profile;
    unsigned int peers = (unsigned int)__builtin_popcount(p->nvlink_peer_mask);

    if (peers == 0 || p->nvlink_links_per_peer == 0) return FAR_NONE;
    if (peers * p->nvlink_links_per_peer > t->card->nvlink_count) return FAR_SWITCH;
    unsigned int wanted = link / p->nvlink_links_per_peer;

    for (uint32_t i = 0; i < t->sim->node->device_count; i++) {
        if (!(p->nvlink_peer_mask >> i & 1)) continue;
        if (wanted-- == 0) return (int)i;
    }
    return FAR_NONE;
}

#define NV_LINK(target, handle, link)                                      \
    NV_TARGET(target, handle, NV_CARD);                                    \
    if ((target).card->nvlink_count == 0) return NVML_ERROR_NOT_SUPPORTED; \
    if ((link) >= (target).card->nvlink_count) return NVML_ERROR_INVALID_ARGUMENT

NVML_API nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *active)
{
    NV_LINK(t, device, link);
    NV_NEED(active);
    bool down = far_end(&t, link) == FAR_NONE || link < t.device->faults.nvlinks_down;
    *active = down ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    NV_LINK(t, device, link);
    NV_NEED(version);
    *version = t.device->profile.nvlink_version;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link,
                                       nvmlNvLinkCapability_t capability, unsigned int *result)
{
    NV_LINK(t, device, link);
    NV_NEED(result);
    if (capability >= NVML_NVLINK_CAP_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    *result = capability == NVML_NVLINK_CAP_P2P_SUPPORTED || capability == NVML_NVLINK_CAP_P2P_ATOMICS ||
              capability == NVML_NVLINK_CAP_VALID;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    NV_LINK(t, device, link);
    NV_NEED(pci);
    int far = far_end(&t, link);

    if (far == FAR_NONE) return NVML_ERROR_INVALID_ARGUMENT;
    if (far >= 0) return nvmlDeviceGetPciInfo_v3(nv_device_handle((uint32_t)far), pci);
    memset(pci, 0, sizeof *pci);
    pci->bus = SWITCH_BUS;
    pci->device = link % 6;
    pci->pciDeviceId = SWITCH_ID;
    snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT, 0u, pci->bus, pci->device);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:%02X.0", pci->bus & 0xFF,
             pci->device & 0xFF);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_t full;

    NV_NEED(pci);
    nvmlReturn_t result = nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, &full);

    if (result == NVML_SUCCESS) memcpy(pci, &full, offsetof(nvmlPciInfo_t, busId));
    return result;
}

NVML_API nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                             nvmlIntNvLinkDeviceType_t *type)
{
    NV_LINK(t, device, link);
    NV_NEED(type);
    int far = far_end(&t, link);

    if (far == FAR_NONE) return NVML_ERROR_INVALID_ARGUMENT;
    *type = far == FAR_SWITCH ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link,
                                         nvmlNvLinkErrorCounter_t counter, unsigned long long *value)
{
    NV_LINK(t, device, link);
    NV_NEED(value);
    if (counter >= NVML_NVLINK_ERROR_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    *value = 0;
    return NVML_SUCCESS;
}

static nvmlGpuTopologyLevel_t common_level(const struct nv_target *a, const struct nv_target *b)
{
    if (a->index == b->index) return NVML_TOPOLOGY_INTERNAL;
    if (a->device->profile.numa_node != b->device->profile.numa_node) return NVML_TOPOLOGY_SYSTEM;
    /* pairs share a switch */
    return a->index / 2 == b->index / 2 ? NVML_TOPOLOGY_MULTIPLE : NVML_TOPOLOGY_NODE;
}

NVML_API nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                             nvmlGpuTopologyLevel_t *level)
{
    NV_TARGET(a, device1, NV_CARD);
    NV_TARGET(b, device2, NV_CARD);
    NV_NEED(level);
    *level = common_level(&a, &b);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                          unsigned int *count, nvmlDevice_t *devices)
{
    NV_TARGET(a, device, NV_CARD);
    NV_NEED(count);
    unsigned int capacity = devices != NULL ? *count : 0, used = 0;

    for (uint32_t i = 0; i < a.sim->node->device_count; i++) {
        struct nv_target b = a;

        b.index = i;
        b.device = &a.sim->node->device[i];
        if (i == a.index || common_level(&a, &b) != level) continue;
        if (used < capacity) devices[used] = nv_device_handle(i);
        used++;
    }
    *count = used;
    return NVML_SUCCESS;
}

NVML_API nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int *count, nvmlDevice_t *devices)
{
    struct sim *s = nv_node();

    if (s == NULL) return NVML_ERROR_UNINITIALIZED;
    NV_NEED(count);
    unsigned int capacity = devices != NULL ? *count : 0, used = 0;

    for (uint32_t i = 0; i < s->node->device_count; i++) {
        unsigned long set[16];

        if (cpu >= 16 * BITS_PER_LONG ||
            nvmlDeviceGetCpuAffinity(nv_device_handle(i), 16, set) != NVML_SUCCESS)
            continue;
        if (!(set[cpu / BITS_PER_LONG] >> cpu % BITS_PER_LONG & 1)) continue;
        if (used < capacity) devices[used] = nv_device_handle(i);
        used++;
    }
    *count = used;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2, nvmlGpuP2PCapsIndex_t index,
                                nvmlGpuP2PStatus_t *status)
{
    NV_TARGET(a, device1, NV_CARD);
    NV_TARGET(b, device2, NV_CARD);
    NV_NEED(status);
    bool linked = a.device->profile.nvlink_peer_mask >> b.index & 1;

    if (a.index == b.index) return NVML_ERROR_INVALID_ARGUMENT;
    if (a.device->mig.mode || b.device->mig.mode) {
        *status = NVML_P2P_STATUS_NOT_SUPPORTED;
        return NVML_SUCCESS;
    }
    switch (index) {
    case NVML_P2P_CAPS_INDEX_NVLINK:
    case NVML_P2P_CAPS_INDEX_ATOMICS:
        *status = linked ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
        return NVML_SUCCESS;
    case NVML_P2P_CAPS_INDEX_READ:
    case NVML_P2P_CAPS_INDEX_WRITE:
    case NVML_P2P_CAPS_INDEX_PCI:
        *status = NVML_P2P_STATUS_OK;
        return NVML_SUCCESS;
    default:
        return NVML_ERROR_INVALID_ARGUMENT;
    }
}

static size_t host_node_count(const struct sim_node *node)
{
    int32_t last = 0;

    for (uint32_t i = 0; i < node->device_count; i++)
        if (node->device[i].profile.numa_node > last) last = node->device[i].profile.numa_node;
    return (size_t)last + 1;
}

/* The simulated NUMA nodes divide this machine's processors evenly, in order. */
NVML_API nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int size, unsigned long *set)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(set);
    if (size == 0) return NVML_ERROR_INVALID_ARGUMENT;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    size_t cpus = online > 0 ? (size_t)online : 1;
    size_t nodes = host_node_count(t.sim->node), node = (size_t)t.device->profile.numa_node;
    size_t from = cpus >= nodes ? node * cpus / nodes : 0,
           to = cpus >= nodes ? (node + 1) * cpus / nodes : cpus;

    memset(set, 0, size * sizeof *set);
    for (size_t cpu = from; cpu < to && cpu / BITS_PER_LONG < size; cpu++)
        set[cpu / BITS_PER_LONG] |= 1ul << cpu % BITS_PER_LONG;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int size, unsigned long *set,
                                             nvmlAffinityScope_t scope)
{
    if (scope > NVML_AFFINITY_SCOPE_SOCKET) return NVML_ERROR_INVALID_ARGUMENT;
    return nvmlDeviceGetCpuAffinity(device, size, set);
}

NVML_API nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int size, unsigned long *set,
                                     nvmlAffinityScope_t scope)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(set);
    if (size == 0 || scope > NVML_AFFINITY_SCOPE_SOCKET) return NVML_ERROR_INVALID_ARGUMENT;
    memset(set, 0, size * sizeof *set);
    if (t.device->profile.numa_node >= 0) set[0] = 1ul << t.device->profile.numa_node;
    return NVML_SUCCESS;
}

/* ---- coherence with the memory of the CPU ---- */

NVML_API nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(node);
    if (sim_memory_node(&t.device->profile) < 0) return NVML_ERROR_NOT_SUPPORTED;
    *node = (unsigned int)sim_memory_node(&t.device->profile);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(mode);
    if (mode->version != nvmlDeviceAddressingMode_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    mode->value = sim_memory_node(&t.device->profile) >= 0 ? NVML_DEVICE_ADDRESSING_MODE_ATS
                                                           : NVML_DEVICE_ADDRESSING_MODE_NONE;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, nvmlC2cModeInfo_v1_t *c2cModeInfo)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(c2cModeInfo);
    if (sim_memory_node(&t.device->profile) < 0) return NVML_ERROR_NOT_SUPPORTED;
    c2cModeInfo->isC2cEnabled = 1;
    return NVML_SUCCESS;
}
