/* The address space of device memory, and look-up of ranges by address. */
#ifndef CALABASH_SIM_CUDA_MEMORY_ADDRESS_SPACE_H
#define CALABASH_SIM_CUDA_MEMORY_ADDRESS_SPACE_H

#include "sim/cuda/process/call.h"
#include "sim/node/state.h"

struct context;
struct device;
struct pool;

enum memory {
    MEMORY_DEVICE = 1,
    MEMORY_MANAGED,
    MEMORY_HOST,       /* pinned, in our range */
    MEMORY_REGISTERED, /* the program's own pages */
    MEMORY_POOL,
    MEMORY_RESERVED, /* a VMM address reservation; its mappings are separate ranges */
    MEMORY_MAPPED,   /* a VMM mapping */
    MEMORY_IMPORTED, /* another process's, by IPC */
    MEMORY_GRAPH,    /* of an allocation node */
};

struct range {
    uint64_t base, size; /* as the program asked */
    uint64_t capacity;   /* bytes taken of the address space */
    uint64_t charged;
    enum memory memory;
    struct device *device; /* NULL: host */
    struct context *context;
    struct pool *pool;
    const uint32_t *pool_access; /* of a pool's memory: the pool's bit per ordinal */
    void *owner;                 /* physical handle of a mapping, array, graph */
    struct range *parent;        /* the reservation that contains a mapping */
    uint64_t handle_types;
    uint64_t id;
    uint32_t flags;
    uint32_t access; /* VMM: bit per ordinal that may read and write */
    int file;        /* memory file it was moved to for IPC, or -1 */
    uint64_t file_offset;
    struct sim_touch place; /* managed memory whose residency is tracked: `bytes` is not 0 */
    bool pending_free;      /* must not be accessed any more */
    bool freeing;           /* its release is queued in a stream */
};

/* Address space: blocks of 2 MiB in one reservation. */
uint64_t space_take(uint64_t bytes, uint64_t alignment, uint64_t wanted);
void space_give(uint64_t base, uint64_t bytes);
bool space_holds(uint64_t address);

void memory_lock(void);
void memory_unlock(void);
/* Requires the lock. The range that contains `address`, or NULL. */
struct range *range_find(uint64_t address);
struct range *range_add(uint64_t base, uint64_t size, uint64_t capacity, enum memory memory);
void range_remove(struct range *r);
/* Make `r` the range of [base, base + bytes) again. */
void range_restore(struct range *r, uint64_t base, uint64_t bytes);
/* Ranges below 1 MiB; a group (device ordinal, or SIM_DEVICES_MAX for the host) never shares a block with
 * another. */
struct range *small_range_take(uint32_t group, uint64_t size, enum memory memory);
bool small_range_give(struct range *r, uint32_t group);
/* Discard the contents of whole blocks. */
void memory_blank(uint64_t base, uint64_t bytes);
/* Every range in the space, by address. `visit` must not change the space. */
void ranges_visit(void (*visit)(struct range *r, void *argument), void *argument);

#endif
