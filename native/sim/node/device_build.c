/*
 * Construction of the devices of a node file from a list of cards: identities, PCI addresses, NVLink wiring,
 * derived rates.
 *
 * Wiring follows the boards these cards are sold on: up to four SXM cards of one model are linked pairwise with
 * their links shared out evenly; more of them are connected to switches, so that every link reaches every peer.
 */
#include "sim/node/device_build.h"

#include <cuda.h>
#include <stdio.h>
#include <string.h>

#define LAUNCH_OVERHEAD_NS 2000u
#define SWITCHED_FROM      5u /* this many linked cards need switches */
#define MEMORY_NODES       8  /* NUMA nodes that the driver keeps for a coherent card */

static uint64_t next_random(struct card_random *random)
{
    /* splitmix64, Steele, Lea, Flood 2014 */
    uint64_t z = random->state += 0x9E3779B97F4A7C15ull;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

static void set_identity(struct sim_profile *p, const struct card *card, struct card_random *random)
{
    uint8_t *u = p->uuid_bytes;
    uint64_t high = next_random(random), low = next_random(random);

    memcpy(u, &high, 8);
    memcpy(u + 8, &low, 8);
    u[6] = (uint8_t)((u[6] & 0x0F) | 0x40); /* RFC 9562, version 4 */
    u[8] = (uint8_t)((u[8] & 0x3F) | 0x80);
    snprintf(p->uuid, sizeof p->uuid,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2],
             u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    snprintf(p->serial, sizeof p->serial, "1%012llu",
             (unsigned long long)(next_random(random) % 1000000000000ull));
    snprintf(p->name, sizeof p->name, "%s", card->name);
    snprintf(p->model, sizeof p->model, "%s", card->key);
    snprintf(p->board_part, sizeof p->board_part, "%s", card->board_part);
    snprintf(p->vbios, sizeof p->vbios, "%s", card->vbios);
}

/* Set the values of cuDeviceGetAttribute that do not follow from other figures. */
static void set_attributes(struct sim_profile *p, const struct card *card)
{
    int32_t *a = p->attribute;
    int wide = card->cc_major >= 8;

    for (uint32_t i = 0; i < SIM_ATTRIBUTES_MAX; i++)
        a[i] = SIM_ATTRIBUTE_NONE;
    a[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR] = (int32_t)card->shared_per_sm_bytes;
    a[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN] = (int32_t)card->shared_optin_bytes;
    a[CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK] = wide ? 1024 : 0;
    a[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR] = (int32_t)card->threads_per_sm;
    a[CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR] = (int32_t)card->blocks_per_sm;
    a[CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT] = card->cc_major >= 7 ? 3 : 2;
    a[CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE] = wide ? (int32_t)(card->l2_bytes / 4 * 3) : 0;
    a[CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE] = wide ? 128 << 20 : 0;
    a[CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH] = card->cc_major >= 9;
    a[CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED] = card->cc_major >= 9;
    a[CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT] = card->cc_major >= 9 ? 4 : 1;
    a[CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO] = card->cc_minor == 0 ? 2 : 32;
    if (card->cards_per_cpu) {
        a[CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS] = 1;
        a[CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES] = 1;
        a[CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST] = 1;
        a[CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED] = 1;
        a[CU_DEVICE_ATTRIBUTE_NUMA_CONFIG] = CU_DEVICE_NUMA_CONFIG_NUMA_NODE;
    }
    a[CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID] = (int32_t)card->pci_device_id;
    a[CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID] = (int32_t)card->pci_subsystem_id;
}

static uint64_t host_bandwidth_bps(uint32_t pcie_gen)
{
    /* Measured rates of pinned copies over sixteen lanes, generations 3, 4 and 5. */
    return pcie_gen >= 5 ? 55000000000ull : pcie_gen == 4 ? 25000000000ull : 12500000000ull;
}

static void set_figures(struct sim_profile *p, const struct card *card)
{
    p->memory_total_bytes = card->memory_bytes;
    p->memory_reserved_bytes = card->reserved_bytes;
    p->context_bytes = card->context_bytes;
    p->bar1_bytes = card->bar1_bytes;
    p->architecture = card->nvml_arch;
    p->brand = card->nvml_brand;
    p->compute_major = card->cc_major;
    p->compute_minor = card->cc_minor;
    p->sm_count = card->sm_count;
    p->cores_per_sm = card->cores_per_sm;
    p->sm_clock_mhz = card->base_clock_mhz;
    p->sm_clock_max_mhz = card->sm_clock_mhz;
    p->memory_clock_mhz = card->memory_clock_mhz;
    p->memory_bus_bits = card->bus_width_bits;
    p->l2_bytes = (uint32_t)card->l2_bytes;
    p->memory_bandwidth_bps = card->bandwidth_mb_s * 1000000ull;
    p->flops_fp32 = 2000000ull * card->sm_clock_mhz * card->sm_count * card->cores_per_sm;
    p->host_bandwidth_bps =
        card->host_mb_s ? card->host_mb_s * 1000000ull : host_bandwidth_bps(card->pcie_gen);
    p->peer_bandwidth_bps = p->host_bandwidth_bps;
    p->launch_overhead_ns = LAUNCH_OVERHEAD_NS;
    p->pci_device_id = card->pci_device_id;
    p->pci_subsystem_id = card->pci_subsystem_id;
    p->pcie_gen = card->pcie_gen;
    p->pcie_width = card->pcie_width;
    p->nvlink_version = card->nvlink_version;
    p->power_limit_mw = card->tdp_mw;
    p->power_limit_min_mw = card->power_min_mw;
    p->power_limit_max_mw = card->tdp_mw;
    p->power_idle_mw = card->idle_mw;
    p->temperature_slowdown_c = card->slowdown_c;
    p->temperature_shutdown_c = card->shutdown_c;
    p->temperature_idle_c = card->idle_c;
    p->mig_capable = card->mig_count > 0;
    p->ecc_capable = (uint32_t)card->ecc_default;
    p->mig_profile_set = (uint32_t)(card - cards) + 1;
}

static void set_wiring(struct sim_device *devices, const struct card *const *list, uint32_t count,
                       uint32_t index)
{
    struct sim_profile *p = &devices[index].profile;
    uint32_t peers = 0;

    if (list[index]->nvlink_count == 0) return;
    for (uint32_t i = 0; i < count; i++) {
        if (i == index || list[i] != list[index]) continue;
        p->nvlink_peer_mask |= 1u << i;
        peers++;
    }
    if (peers == 0) return;
    p->nvlink_links_per_peer =
        peers + 1 >= SWITCHED_FROM ? list[index]->nvlink_count : list[index]->nvlink_count / peers;
    p->peer_bandwidth_bps = p->nvlink_links_per_peer * (uint64_t)list[index]->nvlink_mb_s * 1000000ull;
}

int32_t sim_memory_node(const struct sim_profile *profile)
{
    if (profile->attribute[CU_DEVICE_ATTRIBUTE_NUMA_CONFIG] != CU_DEVICE_NUMA_CONFIG_NUMA_NODE) return -1;
    return profile->attribute[CU_DEVICE_ATTRIBUTE_NUMA_ID];
}

/* Each Grace CPU is a NUMA node and a PCI domain group of its own: 0009:01:00.0 is the card of the first GH200,
 * 0008:01:00.0 and 0009:01:00.0 are those of the first pair of GB200. */
static void set_superchips(struct sim_device *devices, const struct card *const *list, uint32_t count)
{
    uint32_t cpus = 0, beside = 0; /* number of cards of the last CPU so far */
    const struct card *last = NULL;

    for (uint32_t i = 0; i < count; i++) {
        struct sim_profile *p = &devices[i].profile;
        uint32_t together = list[i]->cards_per_cpu;

        if (together == 0) continue;
        if (last != list[i] || beside == together) {
            cpus++;
            beside = 0;
        }
        last = list[i];
        p->numa_node = (int32_t)cpus - 1;
        p->pci_domain = 0x10 * (cpus - 1) + (together == 1 ? 9 : 8 + beside);
        p->pci_bus = 1;
        beside++;
    }
}

/* The memory of each coherent card is a NUMA node after those of the CPUs, with seven more for MIG devices. */
static void set_memory_nodes(struct sim_device *devices, const struct card *const *list, uint32_t count)
{
    int32_t next = 0;

    for (uint32_t i = 0; i < count; i++)
        if (devices[i].profile.numa_node >= next) next = devices[i].profile.numa_node + 1;
    for (uint32_t i = 0; i < count; i++) {
        if (list[i]->cards_per_cpu == 0) continue;
        devices[i].profile.attribute[CU_DEVICE_ATTRIBUTE_NUMA_ID] = next;
        next += MEMORY_NODES;
    }
}

void card_build(struct sim_device *devices, const struct card *const *list, uint32_t count,
                struct card_random *random)
{
    uint32_t numa_nodes = count > 1 ? 2 : 1;

    memset(devices, 0, count * sizeof *devices);
    for (uint32_t i = 0; i < count; i++) {
        struct sim_profile *p = &devices[i].profile;

        set_identity(p, list[i], random);
        set_figures(p, list[i]);
        set_attributes(p, list[i]);
        p->numa_node = (int32_t)(i * numa_nodes / count);
        p->pci_bus = 0x07 + 0x0E * i; /* root ports far enough apart for sixteen cards below bus 0xFF */
        p->minor_number = i;
        devices[i].persistence_mode = 1;
        devices[i].ecc_mode = devices[i].ecc_mode_pending = p->ecc_capable;
    }
    set_superchips(devices, list, count);
    set_memory_nodes(devices, list, count);
    for (uint32_t i = 0; i < count; i++)
        set_wiring(devices, list, count, i);
}

const struct card *card_of(const struct sim_device *device)
{
    uint32_t set = device->profile.mig_profile_set;

    return set >= 1 && set <= card_count ? &cards[set - 1] : NULL;
}

static int text_is_terminated(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL;
}

static const char *device_check(const struct sim_device *d)
{
    const struct sim_profile *p = &d->profile;

    if (!text_is_terminated(p->name, sizeof p->name) || !text_is_terminated(p->model, sizeof p->model) ||
        !text_is_terminated(p->uuid, sizeof p->uuid) || !text_is_terminated(p->serial, sizeof p->serial) ||
        !text_is_terminated(p->board_part, sizeof p->board_part) ||
        !text_is_terminated(p->vbios, sizeof p->vbios))
        return "a device's text is not terminated";
    if (card_of(d) == NULL || strcmp(card_of(d)->key, p->model) != 0) return "a device has no known model";
    if (strncmp(p->uuid, "GPU-", 4) != 0 || strlen(p->uuid) != 40) return "a device's UUID is malformed";
    if (p->memory_total_bytes != card_of(d)->memory_bytes ||
        p->memory_reserved_bytes >= p->memory_total_bytes || p->sm_count != card_of(d)->sm_count ||
        p->pci_bus > 0xFF)
        return "a device's figures are not its model's";
    for (uint32_t i = 0; i < SIM_LINES_MAX; i++)
        if (d->engine.line[i].active_count > SIM_QUEUES_MAX) return "a device's queue count is out of range";
    return NULL;
}

const char *card_check_node(const struct sim_node *node)
{
    if (!text_is_terminated(node->name, sizeof node->name) ||
        !text_is_terminated(node->driver_version, sizeof node->driver_version) ||
        !text_is_terminated(node->nvml_version, sizeof node->nvml_version))
        return "its text is not terminated";
    if (node->unserved_count > SIM_UNSERVED_MAX) return "its list of unserved functions is out of range";
    for (uint32_t i = 0; i < node->device_count; i++) {
        const char *wrong = device_check(&node->device[i]);

        if (wrong != NULL) return wrong;
    }
    return NULL;
}
