/*
 * The two files of an allocation, shared by the agent (Python) and the shim (C).
 *
 *   <slot>/limits   written by the agent, mapped read-only by the tenant: what it may have, and when it may run.
 *   <slot>/usage    written by the tenant, mapped read-write: what it has. The agent trusts it for speed only;
 *                   NVML is the truth. Every value read from it is bounded before use.
 *   <slot>/lease    an empty file; every process of the allocation holds flock(LOCK_SH) on it, so the kernel itself
 *                   tells the agent when the last one is gone.
 *
 * All integers are little-endian and naturally aligned. Times are CLOCK_MONOTONIC nanoseconds (one clock per host,
 * shared by all its containers). `word` fields are futex words.
 */
#ifndef CALABASH_PAGE_H
#define CALABASH_PAGE_H

#include <stddef.h>
#include <stdint.h>

#define CB_LIMITS_MAGIC 0x314D494C42414C43ull /* "CLABLIM1" */
#define CB_USAGE_MAGIC 0x3147535542414C43ull  /* "CLABUSG1" */
#define CB_PAGE_VERSION 1u
#define CB_DEVICES_MAX 16u
#define CB_PROCS_MAX 1024u

enum cb_policy { CB_POLICY_NONE = 0, CB_POLICY_FIXED = 1, CB_POLICY_BURST = 2, CB_POLICY_BEST_EFFORT = 3 };

/* How the shim obeys the compute share right now; set by the agent's arbiter. */
enum cb_gate {
    CB_GATE_OPEN = 0, /* no limit in force (burst and nobody else wants the device) */
    CB_GATE_RATE = 1, /* alone or uncontended: hold to core_percent with the local bucket */
    CB_GATE_TURN = 2, /* contended: launch only inside [turn_start_ns, turn_end_ns) */
};

struct cb_limits_device { /* 256 bytes */
    char uuid[48];              /* "GPU-...", NUL-terminated */
    uint64_t memory_limit_bytes; /* 0: not capped */
    uint64_t residual_bytes;     /* NVML truth minus ledger: contexts, modules; counted by every check */
    uint32_t core_percent;       /* 1..100 */
    uint32_t policy;             /* enum cb_policy */
    int32_t priority;
    uint32_t gate;          /* enum cb_gate; read after `word` */
    uint32_t word;          /* bumped (and woken) at every change of gate, turn or grant */
    uint32_t reserved0;
    uint64_t turn_start_ns; /* valid when gate == CB_GATE_TURN */
    uint64_t turn_end_ns;
    uint64_t granted_ns; /* cumulative GPU time granted; 0 when not used */
    uint64_t reserved[18];
};

struct cb_limits { /* 8192 bytes */
    uint64_t magic;
    uint32_t version;
    uint32_t device_count;
    uint32_t generation; /* seqlock: odd while the agent writes the static part */
    uint32_t flags;
    uint64_t heartbeat_ns; /* the agent's last sign of life */
    char allocation[64];
    char reserved[4096 - 96];
    struct cb_limits_device device[CB_DEVICES_MAX];
};

struct cb_usage_device { /* 256 bytes: one writer-hot line pair per purpose */
    _Alignas(128) uint64_t used_bytes; /* reserved before the driver is called, by compare-and-swap */
    uint64_t denied_count;
    uint64_t peak_bytes;
    uint64_t reserved0[13];
    _Alignas(128) uint64_t charged_ns; /* cumulative measured GPU time */
    uint64_t inflight_ns;              /* estimated GPU time submitted and not yet seen finished */
    uint32_t inflight_count;
    uint32_t waiting_count;   /* launches blocked at the gate: demand */
    uint64_t kernel_ns_max;   /* recent longest launch: the arbiter's turns are never shorter */
    uint64_t launch_count;
    uint64_t throttled_ns;
    uint64_t last_launch_ns;
    uint64_t reserved1[8];
};

struct cb_usage_proc { /* 512 bytes: one process; freed by the agent when the process is dead */
    uint32_t state;      /* 0 free, 1 claimed, 2 live */
    uint32_t generation; /* bumped at each claim */
    int32_t pid;         /* in the tenant's own PID namespace */
    int32_t host_pid;    /* written by the agent when it differs; else 0 */
    uint64_t start_time; /* field 22 of /proc/self/stat: guards against pid reuse */
    uint64_t used_bytes[CB_DEVICES_MAX];     /* committed allocations of this process */
    uint64_t reserving_bytes[CB_DEVICES_MAX]; /* reserved, the driver not yet answered */
    uint64_t inflight_ns[CB_DEVICES_MAX];
    uint64_t reserved[13];
};

struct cb_usage {
    uint64_t magic;
    uint32_t version;
    uint32_t device_count;
    char reserved[4096 - 16];
    struct cb_usage_device device[CB_DEVICES_MAX];
    struct cb_usage_proc proc[CB_PROCS_MAX];
};

_Static_assert(sizeof(struct cb_limits_device) == 256, "layout");
_Static_assert(offsetof(struct cb_limits, device) == 4096, "layout");
_Static_assert(sizeof(struct cb_usage_device) == 256, "layout");
_Static_assert(sizeof(struct cb_usage_proc) == 512, "layout");
_Static_assert(offsetof(struct cb_usage, proc) == 8192, "layout");

#endif
