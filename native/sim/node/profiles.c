/*
 * The table of cards. Sources: public data sheets, the PCI id database, and the outputs of nvidia-smi and
 * deviceQuery that owners have published. Context costs, idle power and temperatures are typical values; the
 * memory of B200's 3g, 4g and 7g instances is derived from its slice size.
 */
#include "sim/node/profiles.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { BRAND_TESLA = 2, BRAND_NVIDIA = 14 };
enum {
    ARCH_PASCAL = 4,
    ARCH_VOLTA = 5,
    ARCH_TURING = 6,
    ARCH_AMPERE = 7,
    ARCH_HOPPER = 9,
    ARCH_BLACKWELL = 10
};

#define KIB 1024u
#define GIB (1ull << 30)

/* Placements shared by every card of seven compute and eight memory slices. */
#define ANY_1  .start_count = 7, .starts = {0, 1, 2, 3, 4, 5, 6}
#define EVEN_4 .start_count = 4, .starts = {0, 2, 4, 6}
#define EVEN_3 .start_count = 3, .starts = {0, 2, 4}
#define HALVES .start_count = 2, .starts = {0, 4}
#define WHOLE  .start_count = 1, .starts = {0}

/* name, memory, SMs, copy engines, decoders, JPEG, OFA */
#define ENGINES(n, mib, sm, ce, dec, jpg, ofa)                                                   \
    .name = (n), .memory_mib = (mib), .sm_count = (sm), .copy_engines = (ce), .decoders = (dec), \
    .jpeg_engines = (jpg), .ofa_engines = (ofa)

#define G1(...) \
    {.nvml_enum = 0, .id = 19, .slices = 1, .size = 1, .max_count = 7, ANY_1, ENGINES(__VA_ARGS__)}
#define G1_MEDIA(...) \
    {.nvml_enum = 7,  \
     .id = 20,        \
     .slices = 1,     \
     .size = 1,       \
     .max_count = 1,  \
     .media = 1,      \
     ANY_1,           \
     ENGINES(__VA_ARGS__)}
#define G1_DOUBLE(...) \
    {.nvml_enum = 9, .id = 15, .slices = 1, .size = 2, .max_count = 4, EVEN_4, ENGINES(__VA_ARGS__)}
#define G2(...) \
    {.nvml_enum = 1, .id = 14, .slices = 2, .size = 2, .max_count = 3, EVEN_3, ENGINES(__VA_ARGS__)}
#define G3(...) \
    {.nvml_enum = 2, .id = 9, .slices = 3, .size = 4, .max_count = 2, HALVES, ENGINES(__VA_ARGS__)}
#define G4(...) {.nvml_enum = 3, .id = 5, .slices = 4, .size = 4, .max_count = 1, WHOLE, ENGINES(__VA_ARGS__)}
#define G7(...) {.nvml_enum = 4, .id = 0, .slices = 7, .size = 8, .max_count = 1, WHOLE, ENGINES(__VA_ARGS__)}

const struct card
    cards[] =
        {
            {
                .key = "V100-32GB",
                .aliases = "V100,V100-SXM2-32",
                .name = "Tesla V100-SXM2-32GB",
                .nvml_brand = BRAND_TESLA,
                .nvml_arch = ARCH_VOLTA,
                .cc_major = 7,
                .cc_minor = 0,
                .sm_count = 80,
                .cores_per_sm = 64,
                .threads_per_sm = 2048,
                .blocks_per_sm = 32,
                .shared_per_sm_bytes = 96 * KIB,
                .shared_optin_bytes = 96 * KIB,
                .memory_bytes = 32768 * CARD_MIB,
                .reserved_bytes = 274 * CARD_MIB,
                .context_bytes = 306 * CARD_MIB,
                .bar1_bytes = 32 * GIB,
                .l2_bytes = 6 * CARD_MIB,
                .bus_width_bits = 4096,
                .bandwidth_mb_s = 898048,
                .sm_clock_mhz = 1530,
                .base_clock_mhz = 1290,
                .idle_clock_mhz = 135,
                .memory_clock_mhz = 877,
                .video_clock_mhz = 1372,
                .tdp_mw = 300000,
                .power_min_mw = 150000,
                .idle_mw = 42000,
                .idle_c = 33,
                .full_c = 68,
                .slowdown_c = 87,
                .shutdown_c = 90,
                .pci_device_id = 0x1DB510DE,
                .pci_subsystem_id = 0x124910DE,
                .pcie_gen = 3,
                .pcie_width = 16,
                .nvlink_count = 6,
                .nvlink_version = 2,
                .nvlink_mb_s = 25781,
                .ecc_default = 1,
                .copy_engines = 6,
                .encoders = 3,
                .decoders = 1,
                .board_part = "900-2G503-0010-000",
                .gpu_part = "1DB5-897-A1",
                .vbios = "88.00.80.00.01",
            },
            {
                .key = "P40",
                .aliases = "P40-24",
                .name = "Tesla P40",
                .nvml_brand = BRAND_TESLA,
                .nvml_arch = ARCH_PASCAL,
                .cc_major = 6,
                .cc_minor = 1,
                .sm_count = 30,
                .cores_per_sm = 128,
                .threads_per_sm = 2048,
                .blocks_per_sm = 32,
                .shared_per_sm_bytes = 96 * KIB,
                .shared_optin_bytes = 48 * KIB,
                .memory_bytes = 23040 * CARD_MIB,
                .reserved_bytes = 121 * CARD_MIB,
                .context_bytes = 152 * CARD_MIB,
                .bar1_bytes = 32 * GIB,
                .l2_bytes = 3 * CARD_MIB,
                .bus_width_bits = 384,
                .bandwidth_mb_s = 347040,
                .sm_clock_mhz = 1531,
                .base_clock_mhz = 1303,
                .idle_clock_mhz = 544,
                .memory_clock_mhz = 3615,
                .video_clock_mhz = 1379,
                .tdp_mw = 250000,
                .power_min_mw = 125000,
                .idle_mw = 10000,
                .idle_c = 27,
                .full_c = 76,
                .slowdown_c = 92,
                .shutdown_c = 95,
                .pci_device_id = 0x1B3810DE,
                .pci_subsystem_id = 0x11D910DE,
                .pcie_gen = 3,
                .pcie_width = 16,
                .ecc_default = 1,
                .copy_engines = 2,
                .encoders = 2,
                .decoders = 1,
                .board_part = "900-2G610-0000-000",
                .gpu_part = "1B38-895-A1",
                .vbios = "86.02.23.00.01",
            },
            {
                .key = "T4",
                .aliases = "T4-16",
                .name = "Tesla T4",
                .nvml_brand = BRAND_NVIDIA,
                .nvml_arch = ARCH_TURING,
                .cc_major = 7,
                .cc_minor = 5,
                .sm_count = 40,
                .cores_per_sm = 64,
                .threads_per_sm = 1024,
                .blocks_per_sm = 16,
                .shared_per_sm_bytes = 64 * KIB,
                .shared_optin_bytes = 64 * KIB,
                .memory_bytes = 15360 * CARD_MIB,
                .reserved_bytes = 446 * CARD_MIB,
                .context_bytes = 104 * CARD_MIB,
                .bar1_bytes = 256 * CARD_MIB,
                .l2_bytes = 4 * CARD_MIB,
                .bus_width_bits = 256,
                .bandwidth_mb_s = 320064,
                .sm_clock_mhz = 1590,
                .base_clock_mhz = 585,
                .idle_clock_mhz = 300,
                .memory_clock_mhz = 5001,
                .video_clock_mhz = 1470,
                .tdp_mw = 70000,
                .power_min_mw = 60000,
                .idle_mw = 9000,
                .idle_c = 32,
                .full_c = 77,
                .slowdown_c = 93,
                .shutdown_c = 96,
                .pci_device_id = 0x1EB810DE,
                .pci_subsystem_id = 0x12A210DE,
                .pcie_gen = 3,
                .pcie_width = 16,
                .ecc_default = 1,
                .copy_engines = 3,
                .encoders = 1,
                .decoders = 2,
                .board_part = "900-2G183-0000-001",
                .gpu_part = "1EB8-895-A1",
                .vbios = "90.04.96.00.01",
            },
            {
                .key = "A30",
                .aliases = "A30-24",
                .name = "NVIDIA A30",
                .nvml_brand = BRAND_NVIDIA,
                .nvml_arch = ARCH_AMPERE,
                .cc_major = 8,
                .cc_minor = 0,
                .sm_count = 56,
                .cores_per_sm = 64,
                .threads_per_sm = 2048,
                .blocks_per_sm = 32,
                .shared_per_sm_bytes = 164 * KIB,
                .shared_optin_bytes = 163 * KIB,
                .memory_bytes = 24576 * CARD_MIB,
                .reserved_bytes = 508 * CARD_MIB,
                .context_bytes = 386 * CARD_MIB,
                .bar1_bytes = 32 * GIB,
                .l2_bytes = 24 * CARD_MIB,
                .bus_width_bits = 3072,
                .bandwidth_mb_s = 933120,
                .sm_clock_mhz = 1440,
                .base_clock_mhz = 930,
                .idle_clock_mhz = 210,
                .memory_clock_mhz = 1215,
                .video_clock_mhz = 1305,
                .tdp_mw = 165000,
                .power_min_mw = 100000,
                .idle_mw = 29000,
                .idle_c = 30,
                .full_c = 66,
                .slowdown_c = 90,
                .shutdown_c = 93,
                .pci_device_id = 0x20B710DE,
                .pci_subsystem_id = 0x153210DE,
                .pcie_gen = 4,
                .pcie_width = 16,
                .ecc_default = 1,
                .remapping = 1,
                .copy_engines = 4,
                .decoders = 4,
                .mig_slices = 4,
                .mig_memory_slices = 4,
                .mig_count = 5,
                .mig =
                    {
                        {.nvml_enum = 0,
                         .id = 14,
                         .slices = 1,
                         .size = 1,
                         .max_count = 4,
                         .start_count = 4,
                         .starts = {0, 1, 2, 3},
                         ENGINES("1g.6gb", 5952, 14, 1, 0, 0, 0)},
                        {.nvml_enum = 7,
                         .id = 21,
                         .slices = 1,
                         .size = 1,
                         .max_count = 1,
                         .media = 1,
                         .start_count = 4,
                         .starts = {0, 1, 2, 3},
                         ENGINES("1g.6gb+me", 5952, 14, 1, 1, 1, 1)},
                        {.nvml_enum = 1,
                         .id = 5,
                         .slices = 2,
                         .size = 2,
                         .max_count = 2,
                         .start_count = 2,
                         .starts = {0, 2},
                         ENGINES("2g.12gb", 11968, 28, 2, 2, 0, 0)},
                        {.nvml_enum = 8,
                         .id = 6,
                         .slices = 2,
                         .size = 2,
                         .max_count = 1,
                         .media = 1,
                         .start_count = 2,
                         .starts = {0, 2},
                         ENGINES("2g.12gb+me", 11968, 28, 2, 2, 1, 1)},
                        {.nvml_enum = 3,
                         .id = 0,
                         .slices = 4,
                         .size = 4,
                         .max_count = 1,
                         WHOLE,
                         ENGINES("4g.24gb", 24000, 56, 4, 4, 1, 1)},
                    },
                .board_part = "900-21001-0040-000",
                .gpu_part = "20B7-883-A1",
                .vbios = "92.00.66.00.01",
            },
            {
                .key = "A100-40GB",
                .aliases = "A100,A100-SXM4-40",
                .name = "NVIDIA A100-SXM4-40GB",
                .nvml_brand = BRAND_NVIDIA,
                .nvml_arch = ARCH_AMPERE,
                .cc_major = 8,
                .cc_minor = 0,
                .sm_count = 108,
                .cores_per_sm = 64,
                .threads_per_sm = 2048,
                .blocks_per_sm = 32,
                .shared_per_sm_bytes = 164 * KIB,
                .shared_optin_bytes = 163 * KIB,
                .memory_bytes = 40960 * CARD_MIB,
                .reserved_bytes = 624 * CARD_MIB,
                .context_bytes = 414 * CARD_MIB,
                .bar1_bytes = 64 * GIB,
                .l2_bytes = 40 * CARD_MIB,
                .bus_width_bits = 5120,
                .bandwidth_mb_s = 1555200,
                .sm_clock_mhz = 1410,
                .base_clock_mhz = 1095,
                .idle_clock_mhz = 210,
                .memory_clock_mhz = 1215,
                .video_clock_mhz = 1290,
                .tdp_mw = 400000,
                .power_min_mw = 100000,
                .idle_mw = 52000,
                .idle_c = 30,
                .full_c = 64,
                .slowdown_c = 89,
                .shutdown_c = 92,
                .pci_device_id = 0x20B010DE,
                .pci_subsystem_id = 0x134F10DE,
                .pcie_gen = 4,
                .pcie_width = 16,
                .nvlink_count = 12,
                .nvlink_version = 3,
                .nvlink_mb_s = 25000,
                .ecc_default = 1,
                .remapping = 1,
                .copy_engines = 7,
                .decoders = 5,
                .mig_slices = 7,
                .mig_memory_slices = 8,
                .mig_count = 7,
                .mig =
                    {
                        G1("1g.5gb", 4864, 14, 1, 0, 0, 0),
                        G1_MEDIA("1g.5gb+me", 4864, 14, 1, 1, 1, 1),
                        G1_DOUBLE("1g.10gb", 9856, 14, 1, 1, 0, 0),
                        G2("2g.10gb", 9856, 28, 2, 1, 0, 0),
                        G3("3g.20gb", 19968, 42, 3, 2, 0, 0),
                        G4("4g.20gb", 19968, 56, 4, 2, 0, 0),
                        G7("7g.40gb", 40192, 98, 7, 5, 1, 1),
                    },
                .board_part = "692-2G506-0200-002",
                .gpu_part = "20B0-884-A1",
                .vbios = "92.00.45.00.03",
            },
            {
                .key = "A100-80GB",
                .aliases = "A100-SXM4-80",
                .name = "NVIDIA A100-SXM4-80GB",
                .nvml_brand = BRAND_NVIDIA,
                .nvml_arch = ARCH_AMPERE,
                .cc_major = 8,
                .cc_minor = 0,
                .sm_count = 108,
                .cores_per_sm = 64,
                .threads_per_sm = 2048,
                .blocks_per_sm = 32,
                .shared_per_sm_bytes = 164 * KIB,
                .shared_optin_bytes = 163 * KIB,
                .memory_bytes = 81920 * CARD_MIB,
                .reserved_bytes = 869 * CARD_MIB,
                .context_bytes = 424 * CARD_MIB,
                .bar1_bytes = 128 * GIB,
                .l2_bytes = 40 * CARD_MIB,
                .bus_width_bits = 5120,
                .bandwidth_mb_s = 2039040,
                .sm_clock_mhz = 1410,
                .base_clock_mhz = 1155,
                .idle_clock_mhz = 210,
                .memory_clock_mhz = 1593,
                .video_clock_mhz = 1290,
                .tdp_mw = 400000,
                .power_min_mw = 100000,
                .idle_mw = 61000,
                .idle_c = 31,
                .full_c = 66,
                .slowdown_c = 89,
                .shutdown_c = 92,
                .pci_device_id = 0x20B210DE,
                .pci_subsystem_id = 0x147F10DE,
                .pcie_gen = 4,
                .pcie_width = 16,
                .nvlink_count = 12,
                .nvlink_version = 3,
                .nvlink_mb_s = 25000,
                .ecc_default = 1,
                .remapping = 1,
                .copy_engines = 7,
                .decoders = 5,
                .mig_slices = 7,
                .mig_memory_slices = 8,
                .mig_count = 7,
                .mig =
                    {
                        G1("1g.10gb", 9728, 14, 1, 0, 0, 0),
                        G1_MEDIA("1g.10gb+me", 9728, 14, 1, 1, 1, 1),
                        G1_DOUBLE("1g.20gb", 19968, 14, 1, 1, 0, 0),
                        G2("2g.20gb", 19968, 28, 2, 1, 0, 0),
                        G3("3g.40gb", 40192, 42, 3, 2, 0, 0),
                        G4("4g.40gb", 40192, 56, 4, 2, 0, 0),
                        G7("7g.80gb", 80896, 98, 7, 5, 1, 1),
                    },
                .board_part = "692-2G506-0210-003",
                .gpu_part = "20B2-895-A1",
                .vbios = "92.00.9E.00.01",
            },
            {
                .key = "H100-80GB",
                .aliases = "H100,H100-SXM5-80",
                .name = "NVIDIA H100 80GB HBM3",
                .nvml_brand = BRAND_NVIDIA,
                .nvml_arch = ARCH_HOPPER,
                .cc_major = 9,
                .cc_minor = 0,
                .sm_count = 132,
                .cores_per_sm = 128,
                .threads_per_sm = 2048,
                .blocks_per_sm = 32,
                .shared_per_sm_bytes = 228 * KIB,
                .shared_optin_bytes = 227 * KIB,
                .memory_bytes = 81559 * CARD_MIB,
                .reserved_bytes = 479 * CARD_MIB,
                .context_bytes = 520 * CARD_MIB,
                .bar1_bytes = 128 * GIB,
                .l2_bytes = 50 * CARD_MIB,
                .bus_width_bits = 5120,
                .bandwidth_mb_s = 3352320,
                .sm_clock_mhz = 1980,
                .base_clock_mhz = 1590,
                .idle_clock_mhz = 345,
                .memory_clock_mhz = 2619,
                .video_clock_mhz = 1545,
                .tdp_mw = 700000,
                .power_min_mw = 200000,
                .idle_mw = 70000,
                .idle_c = 30,
                .full_c = 67,
                .slowdown_c = 87,
                .shutdown_c = 92,
                .pci_device_id = 0x233010DE,
                .pci_subsystem_id = 0x16C110DE,
                .pcie_gen = 5,
                .pcie_width = 16,
                .nvlink_count = 18,
                .nvlink_version = 4,
                .nvlink_mb_s = 26562,
                .ecc_default = 1,
                .remapping = 1,
                .copy_engines = 8,
                .decoders = 7,
                .mig_slices = 7,
                .mig_memory_slices = 8,
                .mig_count = 7,
                .mig =
                    {
                        G1("1g.10gb", 9984, 16, 1, 1, 1, 0),
                        G1_MEDIA("1g.10gb+me", 9984, 16, 1, 1, 1, 1),
                        G1_DOUBLE("1g.20gb", 20096, 26, 1, 1, 1, 0),
                        G2("2g.20gb", 20096, 32, 2, 2, 2, 0),
                        G3("3g.40gb", 40448, 60, 3, 3, 3, 0),
                        G4("4g.40gb", 40448, 64, 4, 4, 4, 0),
                        G7("7g.80gb", 81152, 132, 8, 7, 7, 1),
                    },
                .board_part = "692-2G520-0200-000",
                .gpu_part = "2330-885-A1",
                .vbios = "96.00.74.00.01",
            },
            {
                .key = "H200-141GB",
                .aliases = "H200,H200-SXM5-141",
                .name = "NVIDIA H200",
                .nvml_brand = BRAND_NVIDIA,
                .nvml_arch = ARCH_HOPPER,
                .cc_major = 9,
                .cc_minor = 0,
                .sm_count = 132,
                .cores_per_sm = 128,
                .threads_per_sm = 2048,
                .blocks_per_sm = 32,
                .shared_per_sm_bytes = 228 * KIB,
                .shared_optin_bytes = 227 * KIB,
                .memory_bytes = 143771 * CARD_MIB,
                .reserved_bytes = 615 * CARD_MIB,
                .context_bytes = 528 * CARD_MIB,
                .bar1_bytes = 256 * GIB,
                .l2_bytes = 60 * CARD_MIB,
                .bus_width_bits = 6144,
                .bandwidth_mb_s = 4916736,
                .sm_clock_mhz = 1980,
                .base_clock_mhz = 1590,
                .idle_clock_mhz = 345,
                .memory_clock_mhz = 3201,
                .video_clock_mhz = 1545,
                .tdp_mw = 700000,
                .power_min_mw = 200000,
                .idle_mw = 76000,
                .idle_c = 29,
                .full_c = 66,
                .slowdown_c = 87,
                .shutdown_c = 92,
                .pci_device_id = 0x233510DE,
                .pci_subsystem_id = 0x18BE10DE,
                .pcie_gen = 5,
                .pcie_width = 16,
                .nvlink_count = 18,
                .nvlink_version = 4,
                .nvlink_mb_s = 26562,
                .ecc_default = 1,
                .remapping = 1,
                .copy_engines = 8,
                .decoders = 7,
                .mig_slices = 7,
                .mig_memory_slices = 8,
                .mig_count = 7,
                .mig =
                    {
                        G1("1g.18gb", 16384, 16, 1, 1, 1, 0),
                        G1_MEDIA("1g.18gb+me", 16384, 16, 1, 1, 1, 1),
                        G1_DOUBLE("1g.35gb", 33280, 26, 1, 1, 1, 0),
                        G2("2g.35gb", 33280, 32, 2, 2, 2, 0),
                        G3("3g.71gb", 71424, 60, 3, 3, 3, 0),
                        G4("4g.71gb", 71424, 64, 4, 4, 4, 0),
                        G7("7g.141gb", 143360, 132, 8, 7, 7, 1),
                    },
                .board_part = "692-2G520-0280-001",
                .gpu_part = "2335-895-A1",
                .vbios = "96.00.BC.00.01",
            },
            {
                .key = "B200-180GB",
                .aliases = "B200,B200-SXM6-180",
                .name = "NVIDIA B200",
                .nvml_brand = BRAND_NVIDIA,
                .nvml_arch = ARCH_BLACKWELL,
                .cc_major = 10,
                .cc_minor = 0,
                .sm_count = 148,
                .cores_per_sm = 128,
                .threads_per_sm = 2048,
                .blocks_per_sm = 32,
                .shared_per_sm_bytes = 228 * KIB,
                .shared_optin_bytes = 227 * KIB,
                .memory_bytes = 183359 * CARD_MIB,
                .reserved_bytes = 717 * CARD_MIB,
                .context_bytes = 612 * CARD_MIB,
                .bar1_bytes = 256 * GIB,
                .l2_bytes = 132644864,
                .bus_width_bits = 7680,
                .bandwidth_mb_s = 7672320,
                .sm_clock_mhz = 1965,
                .base_clock_mhz = 1665,
                .idle_clock_mhz = 120,
                .memory_clock_mhz = 3996,
                .video_clock_mhz = 1950,
                .tdp_mw = 1000000,
                .power_min_mw = 200000,
                .idle_mw = 140000,
                .idle_c = 30,
                .full_c = 68,
                .slowdown_c = 87,
                .shutdown_c = 92,
                .pci_device_id = 0x290110DE,
                .pci_subsystem_id = 0x199910DE,
                .pcie_gen = 5,
                .pcie_width = 16,
                .nvlink_count = 18,
                .nvlink_version = 5,
                .nvlink_mb_s = 53125,
                .ecc_default = 1,
                .remapping = 1,
                .copy_engines = 16,
                .decoders = 7,
                .mig_slices = 7,
                .mig_memory_slices = 8,
                .mig_count = 7,
                .mig =
                    {
                        G1("1g.23gb", 22528, 18, 2, 1, 1, 0),
                        G1_MEDIA("1g.23gb+me", 22528, 18, 2, 1, 1, 1),
                        G1_DOUBLE("1g.45gb", 45312, 30, 2, 1, 1, 0),
                        G2("2g.45gb", 45312, 36, 4, 2, 2, 0),
                        G3("3g.90gb", 91136, 70, 6, 3, 3, 0),
                        G4("4g.90gb", 91136, 72, 8, 4, 4, 0),
                        G7("7g.180gb", 182528, 148, 16, 7, 7, 1),
                    },
                .board_part = "692-2G525-0220-000",
                .gpu_part = "2901-886-A1",
                .vbios = "97.00.88.00.01",
            },
};

const size_t card_count = sizeof(cards) / sizeof(cards[0]);

/* Reduces a spelling to its letters and digits in upper case, without a closing "GB"; false when it does not
 * fit. */
static int squeeze(const char *text, size_t length, char *out, size_t out_size)
{
    size_t used = 0;

    for (size_t i = 0; i < length; i++) {
        if (text[i] == '-' || text[i] == '_' || text[i] == ' ') continue;
        if (!isalnum((unsigned char)text[i]) || used + 1 >= out_size) return 0;
        out[used++] = (char)toupper((unsigned char)text[i]);
    }
    if (used > 2 && strncmp(out + used - 2, "GB", 2) == 0) used -= 2;
    out[used] = '\0';
    return used > 0;
}

static int same_spelling(const char *wanted, const char *text, size_t length)
{
    char squeezed[64];

    return squeeze(text, length, squeezed, sizeof squeezed) && strcmp(wanted, squeezed) == 0;
}

const struct card *card_find(const char *text)
{
    char wanted[64];

    if (!squeeze(text, strlen(text), wanted, sizeof wanted)) return NULL;
    for (size_t i = 0; i < card_count; i++) {
        const struct card *card = &cards[i];

        if (same_spelling(wanted, card->key, strlen(card->key))) return card;
        if (same_spelling(wanted, card->name, strlen(card->name))) return card;
        for (const char *alias = card->aliases; *alias != '\0';) {
            size_t length = strcspn(alias, ",");

            if (same_spelling(wanted, alias, length)) return card;
            alias += length + (alias[length] == ',');
        }
    }
    return NULL;
}

static char keys[256];

static void build_keys(void)
{
    size_t used = 0;

    for (size_t i = 0; i < card_count; i++) {
        int n = snprintf(keys + used, sizeof keys - used, "%s%s", i > 0 ? ", " : "", cards[i].key);

        if (n < 0 || (size_t)n >= sizeof keys - used) return;
        used += (size_t)n;
    }
}

const char *card_keys(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, build_keys);
    return keys;
}
