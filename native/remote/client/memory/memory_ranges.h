/* The memory that this process has: device memory by the worker's addresses, and host memory of its own. */
#ifndef CALABASH_REMOTE_CLIENT_MEMORY_MEMORY_RANGES_H
#define CALABASH_REMOTE_CLIENT_MEMORY_MEMORY_RANGES_H

#include "remote/client/api/base.h"

enum cb_memory {
    CB_MEMORY_UNKNOWN,
    CB_MEMORY_DEVICE,
    CB_MEMORY_POOL,       /* device memory of a pool */
    CB_MEMORY_MANAGED,    /* at both ends */
    CB_MEMORY_HOST,       /* pinned */
    CB_MEMORY_REGISTERED, /* the program's own pages */
};

struct cb_range {
    uint64_t address, bytes;
    enum cb_memory memory;
    unsigned int flags; /* of host and managed memory */
    bool twin;          /* host memory that the worker has, too */
    CUcontext context;
    CUdevice device;
    uint64_t id; /* never given again */
};

/* In the current context. */
bool cb_range_add(uint64_t address, uint64_t bytes, enum cb_memory memory, unsigned int flags);
/* The one that begins there leaves; false: there is none. */
bool cb_range_drop(uint64_t address, struct cb_range *out);
/* The one that the address is in. */
bool cb_range_of(uint64_t address, struct cb_range *out);
/* The worker has it from now on. */
void cb_range_twin(uint64_t address);
/* One that lies in [address, address + bytes), by its address; false: there is none. */
bool cb_range_within(uint64_t address, uint64_t bytes, struct cb_range *out);
/* One of that context; false: there is none. */
bool cb_range_of_context(CUcontext context, struct cb_range *out);
/* Whether all of it is in one range that the worker has, and a copy there is known to be right. */
bool cb_range_is_device(uint64_t address, uint64_t bytes);
/* Whether the memory there is this process's own alone: what a copy reads or writes here. */
bool cb_range_is_here(uint64_t address);

static inline bool cb_memory_is_host(enum cb_memory m)
{
    return m == CB_MEMORY_HOST || m == CB_MEMORY_REGISTERED;
}

#endif
