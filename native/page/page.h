/*
 * Layout of the shared files of an allocation's slot, used by the agent (Python) and the shim (C).
 *
 *   <slot>/limits: written by the agent, mapped read-only by the tenant: the limits, and the times when it
 *   may launch.
 *
 *   <slot>/usage: written by the tenant, mapped read-write: what it uses. The agent relies on it for speed
 *   only; NVML is authoritative. Every value read from it is bounded before use.
 *
 *   <slot>/lease: an empty file; every process of the allocation holds flock(LOCK_SH) on it, so the kernel
 *   itself tells the agent when the last process has ended. Absent if limits.flags has CB_LIMITS_LEASELESS:
 *   then membership follows from a cgroup.
 *
 * A device without a cap and without a policy (memory_limit_bytes 0, CB_POLICY_NONE) is only visible: nothing
 * is charged on it.
 *
 * All integers are little-endian and naturally aligned. Times are CLOCK_MONOTONIC nanoseconds (one clock per
 * host, shared by all its containers). `word` fields are futex words.
 *
 * Memory: the one rule. The check of every reservation is
 *
 *     usage.device[d].used_bytes + charge <= limits.device[d].memory_limit_bytes -
 *     limits.device[d].residual_bytes
 *
 * used_bytes counts what the program asked for explicitly, from before the driver is called: allocations of
 * every family, the variables of its modules, and each of its contexts at limits.device[d].context_bytes, the
 * learned cost of one context. A context is therefore counted once, at once, and for as long as it lives. The
 * agent publishes residual_bytes: the sum over processes of what NVML reports beyond their used_bytes (code,
 * fragmentation, a context that cost more than was known), never less than 0.
 *
 * If a device's slice may spill, its cap is memory_limit_bytes + spill_limit_bytes. A reservation that stays
 * within memory_limit_bytes is granted without a further check. Beyond it, everything that the driver can page
 * is allocated as managed memory, up to the cap; memory that cannot be paged is granted as long as all
 * unpageable memory stays within resident_limit_bytes, the part of the card that the slice was promised.
 * pageable_units counts a process's managed memory: it is raised after and lowered before used_bytes, so that
 * the difference is never less than what stays on the card permanently.
 *
 * used_bytes and the used_bytes of the processes are changed only by the transactions of charge.h
 * (native/page), which keep both equal through SIGKILL at any instruction. Python never writes them: it calls
 * libcalabash-page.so.
 */
#ifndef CALABASH_PAGE_H
#define CALABASH_PAGE_H

#include <stddef.h>
#include <stdint.h>

#define CB_LIMITS_MAGIC 0x314D494C42414C43ull /* "CLABLIM1" */
#define CB_USAGE_MAGIC  0x3147535542414C43ull /* "CLABUSG1" */
/* the highest version that this code reads; a page has the lowest version that can express its contents */
#define CB_PAGE_VERSION 2u
#define CB_PAGE_PLAIN   1u /* no device spills */
#define CB_DEVICES_MAX  16u
#define CB_PROCS_MAX    1024u
#define CB_KERNELS_MAX  64u

/* Bits of limits.flags. */
#define CB_LIMITS_LEASELESS 1u /* membership follows from a cgroup: there is no lease file */

enum cb_policy {
    CB_POLICY_NONE = 0,
    CB_POLICY_FIXED = 1,
    CB_POLICY_BURST = 2,
    CB_POLICY_BEST_EFFORT = 3,
    CB_POLICY_METERED = 4, /* as CB_POLICY_NONE, but usage is measured, because nothing else can report it */
};

/* How the shim enforces the compute share at present; set by the agent's arbiter. */
enum cb_gate {
    CB_GATE_OPEN = 0, /* no limit in force (policy burst, and no other container uses the device) */
    CB_GATE_RATE = 1, /* uncontended: limit to core_percent with the local bucket */
    CB_GATE_TURN = 2, /* contended: launch only inside the time windows of `plan` */
};

/*
 * Time windows in which a container may launch: [start + k * period, end + k * period) for k >= 0, as far as
 * they lie at or after `from`. A plan repeats until it is replaced, so a late agent does not interrupt a
 * tenant. end == start: no window.
 */
struct cb_plan {
    uint64_t from_ns;
    uint64_t start_ns;
    uint64_t end_ns;
    uint64_t period_ns; /* 0: one window only */
};

struct cb_limits_device {        /* 256 bytes */
    char uuid[48];               /* "GPU-...", NUL-terminated */
    uint64_t memory_limit_bytes; /* 0: not capped */
    /* what NVML reports minus used_bytes: code, fragmentation; included in every check */
    uint64_t residual_bytes;
    uint32_t core_percent; /* 1..100 */
    uint32_t policy;       /* enum cb_policy */
    int32_t priority;
    uint32_t gate; /* enum cb_gate */
    uint32_t word; /* seqlock and futex: odd while gate and plans are written, woken after */
    /* other containers that use the device now; 0: all measured time is this container's */
    uint32_t neighbours;
    uint64_t unreported_ns; /* cumulative GPU time that the driver reported and charged_ns does not include */
    uint64_t context_bytes; /* learned cost of one context on this device; 0: not known */
    struct cb_plan plan;    /* valid when gate == CB_GATE_TURN, from plan.from_ns on */
    struct cb_plan previous;    /* the plan in force until plan.from_ns */
    uint64_t seen_ns;           /* cumulative GPU time that the driver reported at the agent's last query */
    uint64_t spill_limit_bytes; /* beyond memory_limit_bytes, as managed memory; 0: none. From version 2 on */
    /* limit of the memory that is not pageable; used if there is a spill limit */
    uint64_t resident_limit_bytes;
    uint64_t reserved[8];
};

struct cb_limits { /* 8192 bytes */
    uint64_t magic;
    uint32_t version;
    uint32_t device_count;
    uint32_t generation; /* seqlock: odd while the agent writes the static part */
    uint32_t flags;
    uint64_t heartbeat_ns; /* when the agent last wrote here */
    char allocation[64];
    uint64_t group; /* inode number of the control group of the allocation; 0: it has none of its own */
    char name[40];  /* name of its slot and control group, NUL-terminated; empty: the allocation's name */
    char reserved[4096 - 144];
    struct cb_limits_device device[CB_DEVICES_MAX];
};

struct cb_usage_device {               /* 256 bytes: one writer-hot line pair per purpose */
    _Alignas(128) uint64_t used_bytes; /* reserved before the driver is called; 16-byte pair with used_tag */
    uint64_t used_tag;                 /* the last transaction on used_bytes: slot, sequence, amount */
    uint64_t denied_count;
    uint64_t peak_bytes;
    uint64_t reserved0[12];
    _Alignas(128) uint64_t charged_ns; /* cumulative measured GPU time */
    uint64_t inflight_ns;              /* estimated GPU time submitted and not yet known to be finished */
    uint32_t inflight_count;
    uint32_t waiting_count; /* launches blocked at the gate: the demand */
    uint64_t kernel_ns_max; /* recent longest launch: the arbiter's time windows are never shorter */
    uint64_t launch_count;
    uint64_t throttled_ns;
    uint64_t demand_ns; /* last launch, or last check by a launch that waits at the gate */
    int64_t bucket_ns;  /* GPU time that may be used at once under CB_GATE_RATE; below 0: debt to pay off */
    uint64_t bucket_time_ns; /* when the bucket was last filled; moved by compare-and-swap */
    uint64_t busy_until_ns;  /* when all work in flight is expected to be done */
    uint64_t settled_ns;     /* the card's time up to here is charged; advanced by compare-and-swap */
    uint64_t reserved1[5];
};

/* TAKEN: assigned to a process, not yet filled in. */
enum cb_proc_state { CB_PROC_FREE = 0, CB_PROC_TAKEN = 1, CB_PROC_LIVE = 2 };

/* One process's use of one device, changed as one 16-byte word. The sequence outlives the process. */
struct cb_usage_share {
    uint64_t used_bytes; /* reserved and committed by this process, its contexts included */
    uint64_t sequence;   /* transactions applied to this pair since the file was made */
};

/* 1024 bytes: one process; freed by the agent (or by another process of the slice) when the process is dead. */
struct cb_usage_proc {
    _Alignas(128) uint32_t state; /* enum cb_proc_state; the first four fields change as one 16-byte word */
    uint32_t generation;          /* incremented each time the entry is taken */
    int32_t pid;                  /* in the tenant's own PID namespace */
    int32_t host_pid;             /* written by the agent when it differs; else 0 */
    uint64_t start_time;          /* field 22 of /proc/self/stat: guards against pid reuse; 0 until LIVE */
    uint64_t pid_namespace;       /* inode of /proc/self/ns/pid: the namespace in which `pid` is valid */
    uint64_t context_count; /* contexts open now, over all devices; 0: no driver state is left to tear down */
    uint32_t parker; /* 1 + the slot of the process that moves this process's charge away or back; 0: none */
    uint32_t parked; /* enum parked: checkpointed and not charged; native/shim/checkpoint.c */
    uint32_t parked_units[CB_DEVICES_MAX]; /* what must be charged again on restore, in units of 512 B */
    uint64_t reserved0[2];
    struct cb_usage_share share[CB_DEVICES_MAX];
    /* part of used_bytes that the driver has not yet granted or refused */
    uint64_t reserving_bytes[CB_DEVICES_MAX];
    uint64_t context_bytes[CB_DEVICES_MAX]; /* part of used_bytes that is for contexts */
    uint64_t inflight_ns[CB_DEVICES_MAX];
    /* when inflight_ns should be done; other processes of the slice drop it well after */
    uint64_t inflight_until_ns[CB_DEVICES_MAX];
    uint32_t waiting[CB_DEVICES_MAX]; /* this process's part of waiting_count */
    /* part of used_bytes that is managed memory, in units of 512 B */
    uint32_t pageable_units[CB_DEVICES_MAX];
};

/* What the processes of a container have measured of kernels of one shape. Written by the tenant only. */
struct cb_usage_kernel {
    uint64_t shape;    /* of its grid and blocks, and the device; 0: free */
    uint64_t mean_ns;  /* 0: not known yet */
    uint64_t begun_ns; /* when it was first launched by a process that had no measurement of it */
    uint32_t owner;    /* 1 + the entry of the process that is measuring it; 0: none */
    uint32_t spare;
};

struct cb_usage {
    uint64_t magic;
    uint32_t version;
    uint32_t device_count;
    uint64_t reaped_ns; /* when a dead process was last removed from the counters */
    struct cb_usage_kernel kernel[CB_KERNELS_MAX];
    char reserved[4096 - 24 - 32 * CB_KERNELS_MAX];
    struct cb_usage_device device[CB_DEVICES_MAX];
    struct cb_usage_proc proc[CB_PROCS_MAX];
};

_Static_assert(sizeof(struct cb_limits_device) == 256, "layout");
_Static_assert(offsetof(struct cb_limits, device) == 4096, "layout");
_Static_assert(sizeof(struct cb_limits) == 8192, "layout");
_Static_assert(sizeof(struct cb_usage_device) == 256, "layout");
_Static_assert(offsetof(struct cb_usage_device, charged_ns) == 128, "layout");
_Static_assert(offsetof(struct cb_usage_proc, share) == 128, "layout");
_Static_assert(sizeof(struct cb_usage_proc) == 1024, "layout");
_Static_assert(offsetof(struct cb_usage, device) == 4096, "layout");
_Static_assert(offsetof(struct cb_usage, proc) == 8192, "layout");

#endif
