/*
 * Figures of real cards, as their public data sheets and their own drivers report them.
 *
 * A simulated device names its card by `key` in the state file; both simulated libraries and the node tool look
 * the figures up here, so that a card's name, memory, SM count and MIG geometry have one source.
 */
#ifndef CALABASH_SIM_CARD_H
#define CALABASH_SIM_CARD_H

#include <stddef.h>
#include <stdint.h>

#define CARD_MIB            ((uint64_t)1 << 20)
#define CARD_MIG_MAX        8
#define CARD_MIG_STARTS_MAX 8

/* One GPU instance profile of a MIG-capable card. Sizes and starts count memory slices. */
struct card_mig {
    const char *name;     /* "1g.5gb" */
    uint32_t nvml_enum;   /* NVML_GPU_INSTANCE_PROFILE_* */
    uint32_t id;          /* as nvidia-smi shows it */
    uint32_t slices;      /* compute slices */
    uint32_t size;        /* memory slices */
    uint32_t max_count;   /* instances on an empty card */
    uint32_t start_count; /* legal placements */
    uint8_t starts[CARD_MIG_STARTS_MAX];
    uint32_t memory_mib;
    uint32_t sm_count;
    uint32_t copy_engines;
    uint32_t decoders;
    uint32_t jpeg_engines;
    uint32_t ofa_engines;
    int media; /* a "+me" profile: at most one such instance per card */
};

struct card {
    const char *key;     /* "A100-40GB", also what the state file holds */
    const char *aliases; /* further spellings, separated by commas */
    const char *name;    /* as NVML and CUDA report it */
    uint32_t nvml_brand, nvml_arch;
    uint32_t cc_major, cc_minor;
    uint32_t sm_count, cores_per_sm, threads_per_sm, blocks_per_sm;
    uint32_t shared_per_sm_bytes, shared_optin_bytes;
    uint64_t memory_bytes;   /* NVML total */
    uint64_t reserved_bytes; /* not available to programs: CUDA's total is memory - reserved */
    uint64_t context_bytes;  /* cost of one CUDA context before its first allocation */
    uint64_t bar1_bytes;
    uint64_t l2_bytes;
    uint32_t bus_width_bits;
    uint32_t bandwidth_mb_s;                               /* 10^6 bytes per second */
    uint32_t sm_clock_mhz, base_clock_mhz, idle_clock_mhz; /* boost maximum, base, idle */
    uint32_t memory_clock_mhz, video_clock_mhz;
    uint32_t tdp_mw, power_min_mw, idle_mw;
    uint32_t idle_c, full_c, slowdown_c, shutdown_c;
    uint32_t pci_device_id, pci_subsystem_id; /* (device << 16) | vendor */
    uint32_t pcie_gen, pcie_width;
    uint32_t cards_per_cpu; /* cards that share a Grace CPU, coherent with its memory; 0: a card on the bus */
    uint32_t host_mb_s;     /* between card and host; 0: as its PCI Express link */
    uint32_t nvlink_count, nvlink_version, nvlink_mb_s; /* links, NVML version, MB/s per link and direction */
    int ecc_default,
        remapping; /* ECC on when shipped; row remapping (Ampere and later), else page retirement */
    uint32_t copy_engines, encoders, decoders;
    uint32_t mig_slices, mig_memory_slices; /* 0: the card has no MIG */
    uint32_t mig_count;
    struct card_mig mig[CARD_MIG_MAX];
    const char *board_part, *gpu_part, *vbios;
};

extern const struct card cards[];
extern const size_t card_count;

/* Find a model by key, alias or full name, ignoring case, spaces, '-', '_' and a closing GB. NULL: unknown. */
const struct card *card_find(const char *text);

/* The keys of all models, "V100-32GB, P40, ...", for messages. */
const char *card_keys(void);

#endif
