/* Memory ranges of this process: device memory by the worker's addresses, and host memory of its own. */
#ifndef CALABASH_REMOTE_CLIENT_MEMORY_MEMORY_RANGES_H
#define CALABASH_REMOTE_CLIENT_MEMORY_MEMORY_RANGES_H

#include "remote/client/api/base.h"

enum cb_memory {
    CB_MEMORY_UNKNOWN,
    CB_MEMORY_DEVICE,
    CB_MEMORY_POOL,       /* device memory of a pool */
    CB_MEMORY_MANAGED,    /* mirrored: at both ends */
    CB_MEMORY_HOST,       /* pinned */
    CB_MEMORY_REGISTERED, /* the program's own pages */
};

struct cb_range {
    uint64_t address, bytes;
    enum cb_memory memory;
    unsigned int flags; /* of host and managed memory */
    bool mirrored;      /* host memory that is mirrored */
    CUcontext context;
    CUdevice device;
    uint64_t id; /* never reused */
};

/* Add a range in the current context. */
bool cb_range_add(uint64_t address, uint64_t bytes, enum cb_memory memory, unsigned int flags);
/* Remove the range that begins there; return false if there is none. */
bool cb_range_drop(uint64_t address, struct cb_range *out);
/* Find the range that contains the address. */
bool cb_range_of(uint64_t address, struct cb_range *out);
/* Mark it as mirrored from now on. */
void cb_range_mark_mirrored(uint64_t address);
/* Find the first range in [address, address + bytes), by address; return false if there is none. */
bool cb_range_within(uint64_t address, uint64_t bytes, struct cb_range *out);
/* Find a range of that context; return false if there is none. */
bool cb_range_of_context(CUcontext context, struct cb_range *out);
/* Return true if all of it is in one range of the worker, so that a copy there cannot fail by its addresses. */
bool cb_range_is_device(uint64_t address, uint64_t bytes);
/* Return true if the memory there belongs to this process alone: a copy reads or writes it here. */
bool cb_range_is_here(uint64_t address);

static inline bool cb_memory_is_host(enum cb_memory m)
{
    return m == CB_MEMORY_HOST || m == CB_MEMORY_REGISTERED;
}

#endif
