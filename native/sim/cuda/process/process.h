/* State of this process as a user of the node: its slot and its devices. */
#ifndef CALABASH_SIM_CUDA_PROCESS_PROCESS_H
#define CALABASH_SIM_CUDA_PROCESS_PROCESS_H

#include "sim/cuda/process/call.h"
#include "sim/node/state.h"

struct context;
struct pool;

struct device { /* a device as this process sees it */
    int ordinal;
    uint32_t index; /* in the node file */
    struct sim_device *shared;
    const struct sim_profile *profile; /* the card's, or that of its compute instance */
    struct sim_profile part;
    int instance;            /* MIG: index of its GPU instance in the node file, or -1 */
    const struct sim_ci *ci; /* MIG: its compute instance */
    struct context *primary; /* exists from cuInit on; active while it is retained */
    uint32_t primary_references;
    uint32_t primary_flags;
    CUuuid uuid;
    struct pool *default_pool, *current_pool;
    uint64_t graph_used, graph_used_high, graph_reserved, graph_reserved_high;
};

struct process {
    struct sim sim;
    uint32_t generation; /* of the slot: it differs if this process was taken for dead */
    _Atomic bool ready;
    bool forked;
    int device_count;
    struct device device[SIM_DEVICES_MAX];
    pthread_mutex_t lock; /* devices, contexts, modules */
    struct context *contexts;
    uint64_t next_id;
};

extern struct process process;

/* Non-zero while this thread is in a call of the per-thread default stream flavour. */
extern __thread int per_thread_default;

struct device *device_get(CUdevice device);
/* Index of its compute instance; SIM_NO_INSTANCE for a whole card. */
uint32_t device_place(const struct device *d);
/* Number of errors contained in its GPU instance; 0 for a whole card. */
uint32_t device_instance_epoch(const struct device *d);
/* Multiprocessors that this process may use. */
uint32_t device_multiprocessors(const struct device *d);
CUresult device_total(const struct device *d, size_t *bytes);

#define DEVICE_OR_RETURN(d, dev)                           \
    struct device *d = device_get(dev);                    \
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED; \
    if (!d) return CUDA_ERROR_INVALID_DEVICE

/* Record a call of an unsupported function and return NOT_SUPPORTED. */
CUresult unserved(const char *name);

#endif
