/*
 * The shared state of a simulated node: a file that every process of the node maps (MAP_SHARED), named by the
 * environment variable CALABASH_SIM. It holds the cards (their models, memory and faults), the processes that
 * use them, and one work queue per context.
 *
 * Locks. Each device has a robust mutex that guards its counters, its engine and its part of every process; the
 * node has one that guards the tables of processes and queues. Take the node's before a device's, never the
 * reverse. When an owner dies holding a lock, the next one recounts the totals from the process table, which is
 * authoritative.
 *
 * Liveness. A process holds an open-file-description lock on one byte per slot, so the kernel itself tells, in
 * every PID namespace, whether it lives. A process that finds an unlocked byte of a live slot frees what the
 * dead process held (a sweep). A second, traditional lock lets the kernel translate the owner's PID into the
 * caller's namespace.
 *
 * Times are CLOCK_MONOTONIC nanoseconds. Static fields are written once, before the file gets its final name.
 */
#ifndef CALABASH_SIM_STATE_H
#define CALABASH_SIM_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#define SIM_MAGIC          0x3145444F4E4D4953ull /* "SIMNODE1" */
#define SIM_VERSION        6u
#define SIM_DRIVER_VERSION "580.95.05"
#define SIM_DEVICES_MAX    16u
#define SIM_PROCS_MAX      1024u
#define SIM_QUEUES_MAX     1024u
#define SIM_QUEUE_WHOLE    65536u
#define SIM_QUEUE_ENTRIES  512u /* power of two: work posted and not yet overwritten, per context */
#define SIM_XIDS_MAX       64u
#define SIM_UNSERVED_MAX   1024u
#define SIM_ATTRIBUTES_MAX 192u
#define SIM_ATTRIBUTE_NONE INT32_MIN
#define SIM_HISTORY_TICKS  512u
#define SIM_TICK_NS        20000000ull /* one history tick is 20 ms: 10 s of device history */
#define SIM_PROC_TICKS     64u
#define SIM_PROC_TICK_NS   100000000ull /* one process tick is 100 ms: 6.4 s of process history */
#define SIM_DEPARTED_MAX   256u
#define SIM_GI_MAX         16u
#define SIM_CI_MAX         16u
/* the card's own, then one for each place of a compute instance */
#define SIM_LINES_MAX   (1u + SIM_CI_MAX)
#define SIM_SLICE_NS    1000000ull /* time slice of the default class */
#define SIM_TIMESLICES  4u         /* classes of time slices: default, short, medium, long */
#define SIM_MANAGED_MAX 4096u      /* managed allocations whose residency is tracked, per device */
#define SIM_TOUCH_MAX   4u         /* tracked allocations that one piece of work may touch */

/* A 64-bit futex-free counter of busy time by tick: busy_ns[t % N] is valid when tick[t % N] == t. */
struct sim_history {
    uint64_t tick[SIM_HISTORY_TICKS];
    uint64_t busy_ns[SIM_HISTORY_TICKS];
    uint64_t copy_ns[SIM_HISTORY_TICKS]; /* time in which a copy was under way: NVML's memory utilisation */
};

struct sim_profile {
    char name[64];  /* marketing name as NVML and CUDA print it */
    char model[32]; /* short name of the profile, "A100-40GB" */
    char uuid[48];  /* "GPU-..." text form of uuid_bytes */
    uint8_t uuid_bytes[16];
    char serial[32];
    char board_part[32];
    char vbios[32];
    uint64_t memory_total_bytes;    /* total as NVML reports it */
    uint64_t memory_reserved_bytes; /* held by the driver and firmware; CUDA's total is total - reserved */
    uint64_t context_bytes;         /* cost of one context */
    uint64_t bar1_bytes;
    uint32_t architecture; /* nvmlDeviceArchitecture_t */
    uint32_t brand;        /* nvmlBrandType_t */
    uint32_t compute_major, compute_minor;
    uint32_t sm_count;
    uint32_t cores_per_sm;
    uint32_t sm_clock_mhz, sm_clock_max_mhz;
    uint32_t memory_clock_mhz;
    uint32_t memory_bus_bits;
    uint32_t l2_bytes;
    uint64_t memory_bandwidth_bps; /* bytes per second */
    uint64_t flops_fp32;           /* peak, per second */
    uint64_t host_bandwidth_bps;   /* host <-> device, bytes per second */
    uint64_t peer_bandwidth_bps;   /* device <-> device, bytes per second */
    uint64_t launch_overhead_ns;   /* least time for which a kernel occupies the card; 0 reads as 2000 */
    uint32_t pci_domain, pci_bus, pci_device;
    uint32_t pci_device_id, pci_subsystem_id; /* device << 16 | vendor, as NVML */
    uint32_t pcie_gen, pcie_width;
    int32_t numa_node;
    uint32_t minor_number;
    uint32_t nvlink_peer_mask; /* bit i: linked with device i */
    uint32_t nvlink_links_per_peer;
    uint32_t nvlink_version;
    uint32_t power_limit_mw, power_limit_min_mw, power_limit_max_mw, power_idle_mw;
    uint32_t temperature_slowdown_c, temperature_shutdown_c, temperature_idle_c;
    uint32_t mig_capable;
    uint32_t ecc_capable;
    uint32_t mig_profile_set;              /* placement table of the NVML part; 0: none */
    int32_t attribute[SIM_ATTRIBUTES_MAX]; /* by CUdevice_attribute; SIM_ATTRIBUTE_NONE: derived or invalid */
    uint64_t spare[32];
};

#define SIM_NO_INSTANCE UINT32_MAX /* as NVML says "none" */
struct sim_xid {
    uint64_t time_ns; /* CLOCK_REALTIME */
    uint32_t xid;
    uint32_t pid;
    uint32_t gi, ci; /* where it was contained; SIM_NO_INSTANCE: the whole card */
};

struct sim_faults {
    uint32_t lost;          /* the card fell off the bus */
    uint32_t slow_permille; /* every duration is multiplied by this / 1000; 0 reads as 1000 */
    uint64_t ecc_volatile_sbe, ecc_volatile_dbe;
    uint64_t ecc_aggregate_sbe, ecc_aggregate_dbe;
    uint32_t fatal_epoch;  /* incremented by an uncorrectable error: older contexts are dead */
    uint32_t fatal_result; /* CUresult that those contexts return; 0 reads as CUDA_ERROR_ECC_UNCORRECTABLE */
    int64_t alloc_fail_countdown; /* n > 0: the n-th allocation from now fails; 0: off */
    uint32_t alloc_fail_permille; /* each allocation fails with this probability */
    uint32_t throttle_reasons;    /* nvmlClocksEventReasons reported besides idle */
    uint32_t temperature_c;       /* 0: modelled */
    uint32_t remapped_rows_correctable, remapped_rows_uncorrectable, remapped_rows_pending;
    uint64_t xid_count; /* xids ever; the last SIM_XIDS_MAX are xid[(n - 1) % SIM_XIDS_MAX] */
    struct sim_xid xid[SIM_XIDS_MAX];
    uint64_t hang_until_ns; /* NVML calls on this card do not return before this CLOCK_MONOTONIC time */
    uint32_t nvlinks_down;  /* number of links that are down, the first ones */
    uint32_t remap_failed;  /* a row could not be remapped */
    uint32_t retired_pages_pending;
    uint32_t reserved;
    uint64_t spare[13];
};

struct sim_ci { /* a compute instance */
    uint32_t used, id, gi_id, profile, eng_profile, slice_start, slice_count;
    uint32_t born; /* the layout's generation that created it: unique on a card */
    char uuid[48]; /* "MIG-..." */
};

struct sim_gi { /* a GPU instance */
    uint32_t used, id, profile, slice_start, slice_count, sm_count, memory_slices, media;
    uint64_t memory_bytes;
    uint64_t used_bytes;  /* bytes allocated from it, counted within the device's */
    uint32_t fatal_epoch; /* as that of the card, for an error that was contained here */
};

struct sim_mig {
    uint32_t mode, mode_pending;
    uint32_t next_id;
    uint32_t generation; /* incremented at each change of the layout */
    struct sim_gi gi[SIM_GI_MAX];
    struct sim_ci ci[SIM_CI_MAX];
    uint64_t busy_ns[SIM_GI_MAX]; /* time in which GPU instances worked, by their index; it only grows */
};

/* Contexts that share time slices: all of a card that is not partitioned, or those of one compute instance. */
struct sim_line {
    uint64_t time_ns;      /* served up to this time */
    uint64_t slice_end_ns; /* end of the slice of the current context, if another one waits */
    uint32_t current;      /* index into active[] of the context that holds the slice */
    uint32_t active_count;
    uint16_t active[SIM_QUEUES_MAX]; /* indices of its live queues, in order of creation */
};

struct sim_engine {
    struct sim_line line[SIM_LINES_MAX];
    /* time in which a kernel ran; on a compute instance its share of the card's multiprocessors */
    uint64_t busy_ns;
    uint64_t copy_ns;
    uint64_t kernel_count;
    uint64_t switch_count; /* slices that passed to another context */
    struct sim_history history;
};

struct sim_device {
    struct sim_profile profile;
    pthread_mutex_t lock;
    uint64_t used_bytes;       /* allocations and contexts of all processes */
    uint64_t alloc_bytes;      /* allocations alone */
    uint64_t alloc_peak_bytes; /* highest alloc_bytes so far; simctl may reset it */
    uint64_t used_peak_bytes;
    uint64_t alloc_count, free_count, denied_count;
    uint32_t persistence_mode;
    /* CUcomputemode / nvmlComputeMode_t: 0 default, 2 prohibited, 3 exclusive process */
    uint32_t compute_mode;
    uint32_t power_limit_mw;                         /* 0: the profile's */
    uint32_t app_sm_clock_mhz, app_memory_clock_mhz; /* 0: the profile's */
    uint32_t ecc_mode, ecc_mode_pending;
    uint64_t energy_base_mj;
    struct sim_faults faults;
    struct sim_mig mig;
    struct sim_engine engine;
    uint32_t timeslice, padding; /* time-slice class of contexts that share it; reset by a restart */
    uint64_t spare[63];
};

/* Kernel time of a process on a device by tick: busy_ns[t % N] is valid when tick[t % N] == t. */
struct sim_ticks {
    uint64_t tick[SIM_PROC_TICKS];
    uint64_t busy_ns[SIM_PROC_TICKS];
};

/* Use of one device by one process; guarded by that device's lock. */
struct sim_proc_device {
    uint64_t alloc_bytes;
    uint64_t context_bytes;
    uint64_t busy_ns;
    uint64_t copy_ns;
    uint64_t alloc_peak_bytes;
    uint32_t context_count;
    uint32_t mig_gi_id, mig_ci_id; /* valid when mig_used */
    uint32_t mig_used;
    uint32_t mig_line,
        mig_born; /* its compute instance: 1 + its index, and the `born` of the instance at that index */
    uint32_t parked_context_count; /* contexts it had when it was checkpointed */
    uint32_t spare;
    uint64_t parked_alloc_bytes, parked_context_bytes;
    struct sim_ticks ticks;
};

/* The last seconds on a device of a process that has ended; guarded by the node's lock. */
struct sim_departed {
    uint32_t used, device;
    uint64_t pid, pid_namespace;
    struct sim_ticks ticks;
};

enum sim_slot { SIM_SLOT_FREE = 0, SIM_SLOT_LIVE = 1 };

/* Role of a process in the multi-process service; mps.h has the theory. */
enum sim_mps_role { SIM_MPS_NONE = 0, SIM_MPS_CLIENT = 1, SIM_MPS_SERVER = 2 };
enum sim_mps_status { SIM_MPS_INITIALIZING = 0, SIM_MPS_ACTIVE = 1, SIM_MPS_FAULT = 2 };

struct sim_mps {
    uint32_t role;     /* enum sim_mps_role */
    uint32_t permille; /* of the multiprocessors: a client's, or what a server gives to new clients */
    uint64_t memory_bytes[SIM_DEVICES_MAX]; /* memory limit of a client, likewise; 0: none */
    uint32_t server, server_generation;     /* a client's */
    uint32_t result; /* a client's: the CUresult that every call returns from now on; 0: none */
    uint32_t id;     /* a client's number at its server; a server's next one */
    uint32_t status; /* a server's: enum sim_mps_status */
    uint32_t uid;    /* a server's: the user whom it serves */
    uint32_t clients_max;
    uint32_t fault_slot, fault_device,
        fault_count; /* a server's: slot and device of the last fatal fault; number of faults */
    uint32_t visible_count;
    uint8_t visible[SIM_DEVICES_MAX]; /* a server's devices, in its order */
    uint32_t fault_pid;               /* in its own PID namespace */
    uint64_t spare[8];
};

struct sim_proc {
    uint32_t state; /* enum sim_slot */
    uint32_t generation;
    uint64_t pid;           /* in the owner's PID namespace */
    uint64_t pid_namespace; /* inode of /proc/self/ns/pid */
    uint64_t start_ticks;   /* field 22 of /proc/self/stat */
    uint64_t attached_ns;   /* CLOCK_REALTIME */
    uint32_t uid;
    uint32_t run;   /* enum sim_run of process_gate.h; a futex word */
    char name[256]; /* the executable's path */
    struct sim_proc_device device[SIM_DEVICES_MAX];
    struct sim_mps mps;
    uint64_t spare[16];
};

enum sim_work { SIM_WORK_KERNEL = 0, SIM_WORK_COPY = 1, SIM_WORK_DELAY = 2 };

enum sim_phase { SIM_PHASE_WAITING = 0, SIM_PHASE_RUNNING = 1, SIM_PHASE_DONE = 2 };

struct sim_entry {
    uint64_t posted_ns;
    uint64_t duration_ns; /* modelled, already multiplied by the slow factor at the post */
    uint64_t start_ns;    /* set by the engine */
    uint64_t end_ns;
    uint64_t left_ns;     /* of one that runs beside others */
    uint64_t after[2];    /* 1 + the number of an entry that it follows; 0: none */
    uint32_t phase;       /* enum sim_phase */
    uint32_t sms;         /* multiprocessors that it needs; 0: all */
    uint16_t follows_all; /* and all earlier ones of blocking streams */
    uint16_t blocking;    /* it belongs to such a stream */
    uint32_t spare;
    uint32_t kind;    /* enum sim_work */
    uint32_t touches; /* entries of touch[] at the same index that are still to be brought in */
};

/* Managed memory used by work: it is brought to the card, or taken to the host, before the work runs. */
struct sim_touch {
    uint16_t place; /* index into managed[device] */
    uint16_t to_host;
    uint32_t generation;
    uint64_t bytes; /* at most, of the resident ones */
};

/* One managed allocation, on the card or not; guarded by the device's lock. */
struct sim_managed {
    uint32_t state; /* enum sim_slot */
    uint32_t generation;
    uint32_t proc; /* slot of its process */
    uint32_t spare;
    uint64_t size_bytes;
    uint64_t resident_bytes; /* charged to its process */
    uint64_t host_bytes;     /* of the rest, the part that has content and must be moved */
    uint64_t used_ns;        /* when work last touched it: the least recent is evicted first */
};

/*
 * One context's work, a ring: `posted` is advanced by its owner only (release), `done` by the engine under the
 * device's lock: all entries before it are complete, and a later entry is complete if its phase says so. Entry
 * n is at entries[n % SIM_QUEUE_ENTRIES]; n counts from 0.
 */
struct sim_queue {
    uint32_t state; /* enum sim_slot */
    uint32_t device;
    uint32_t proc;
    uint32_t proc_generation;
    uint32_t started; /* the head has been given time on the engine */
    uint32_t priority;
    uint32_t line;  /* of its device's engine */
    uint32_t share; /* of SIM_QUEUE_WHOLE: a green context's part of the multiprocessors; 0: all */
    uint64_t head_left_ns;
    uint64_t last_end_ns; /* completion time of the latest finished entry */
    uint64_t loose;       /* 1 + the number of the latest entry that does not follow the one before it */
    _Alignas(64) uint64_t posted;
    _Alignas(64) uint64_t done;
    struct sim_entry entries[SIM_QUEUE_ENTRIES];
    struct sim_touch touch[SIM_QUEUE_ENTRIES][SIM_TOUCH_MAX];
};

struct sim_unserved {
    char name[63];
    uint8_t kernel; /* an unknown kernel, not a function */
    uint64_t count;
};

struct sim_node {
    uint64_t magic;
    uint32_t version;
    uint32_t device_count;
    uint64_t size_bytes; /* of this struct, as the creator saw it */
    char name[64];
    uint32_t driver_cuda; /* result of cuDriverGetVersion, 13000 */
    char driver_version[32];
    char nvml_version[32];
    uint64_t created_ns; /* CLOCK_REALTIME */
    char boot_id[40];    /* the boot in which the dynamic part was last valid */
    pthread_mutex_t lock;
    uint64_t swept_ns;
    uint64_t swept_count; /* slots freed because their owner had died */
    uint64_t owner_dead_count;
    uint32_t unserved_count;
    struct sim_unserved unserved[SIM_UNSERVED_MAX];
    uint32_t proc_high, queue_high; /* slots from here on were never used and need not be searched */
    uint64_t spare[255];
    struct sim_device device[SIM_DEVICES_MAX];
    struct sim_proc proc[SIM_PROCS_MAX];
    struct sim_queue queue[SIM_QUEUES_MAX];
    uint64_t departed_count; /* total; the last SIM_DEPARTED_MAX are kept, as xid of sim_faults */
    struct sim_departed departed[SIM_DEPARTED_MAX];
    uint32_t managed_high[SIM_DEVICES_MAX];
    struct sim_managed managed[SIM_DEVICES_MAX][SIM_MANAGED_MAX];
};

_Static_assert(SIM_QUEUES_MAX <= UINT16_MAX, "active[] holds 16-bit indices");
_Static_assert((SIM_QUEUE_ENTRIES & (SIM_QUEUE_ENTRIES - 1)) == 0, "a ring's size is a power of two");

/* A process's access to the node: the mapping and, after sim_attach, its slot. Never unmapped before exit. */
struct sim {
    struct sim_node *node;
    int fd;
    int slot; /* -1: read only, no slot */
    dev_t file_device;
    ino_t file_inode;
    char path[4096];
};

static inline uint64_t sim_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline uint64_t sim_round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Charge of an allocation of `bytes`: below 1 MiB a multiple of 512 B, from there a multiple of 2 MiB. */
#define SIM_SMALL_BYTES (1ull << 20)
#define SIM_SMALL_UNIT  512ull
#define SIM_LARGE_UNIT  (2ull << 20)
static inline uint64_t sim_charge_bytes(uint64_t bytes)
{
    return sim_round_up(bytes ? bytes : 1, bytes < SIM_SMALL_BYTES ? SIM_SMALL_UNIT : SIM_LARGE_UNIT);
}

static inline uint64_t sim_device_total(const struct sim_device *d)
{
    return d->profile.memory_total_bytes - d->profile.memory_reserved_bytes;
}

static inline uint32_t sim_procs_used(const struct sim_node *n)
{
    uint32_t high = __atomic_load_n(&n->proc_high, __ATOMIC_ACQUIRE);
    return high < SIM_PROCS_MAX ? high : SIM_PROCS_MAX;
}

static inline uint32_t sim_queues_used(const struct sim_node *n)
{
    uint32_t high = __atomic_load_n(&n->queue_high, __ATOMIC_ACQUIRE);
    return high < SIM_QUEUES_MAX ? high : SIM_QUEUES_MAX;
}

/*
 * Write a new node file with these cards (only profile, modes and faults of each are read). Return 0, or
 * -errno.
 */
int sim_create(const char *path, const char *name, const struct sim_device *devices, uint32_t count);

/*
 * Map the node at `path` (NULL: the one that CALABASH_SIM names). Return 0, or -errno: -ENOENT none named or
 * absent, -EPROTO not a node file of this version. The descriptor stays open until exit: closing it would drop
 * the process's locks.
 */
int sim_open(struct sim *s, const char *path);

void sim_lock_node(struct sim *s);
void sim_unlock_node(struct sim *s);
void sim_lock_device(struct sim *s, uint32_t device);
void sim_unlock_device(struct sim *s, uint32_t device);

/*
 * Recount the totals of a device and of its GPU instances from the process table. Requires the device's lock.
 */
void sim_recount(struct sim_node *n, uint32_t device);

/* CLOCK_REALTIME, in nanoseconds. */
uint64_t sim_realtime(void);

/* First line of a small file; "" if it cannot be read. */
void sim_read_line(const char *path, char *out, size_t size);

/* Record a call of a function that is not implemented, or a launch of an unknown kernel. */
void sim_count_unserved(struct sim *s, const char *name, bool kernel);

/* Fault injection, for simctl and tests. */
void sim_inject_xid(struct sim *s, uint32_t device, uint32_t xid, uint32_t pid);
void sim_inject_ecc(struct sim *s, uint32_t device, bool uncorrectable);

/*
 * The same, contained in one compute instance. `place` is its index in the table; SIM_NO_INSTANCE: not
 * contained.
 */
void sim_inject_xid_at(struct sim *s, uint32_t device, uint32_t place, uint32_t xid, uint32_t pid);
void sim_inject_ecc_at(struct sim *s, uint32_t device, uint32_t place, bool uncorrectable);

#endif
