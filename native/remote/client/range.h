/* The memory that this process has: device memory by the worker's addresses, and host memory of its own. */
#ifndef CALABASH_REMOTE_CLIENT_RANGE_H
#define CALABASH_REMOTE_CLIENT_RANGE_H

#include "remote/client/base.h"

enum cb_memory { CB_MEMORY_UNKNOWN, CB_MEMORY_DEVICE, CB_MEMORY_HOST, CB_MEMORY_REGISTERED };

struct cb_range {
    uint64_t address, bytes;
    enum cb_memory memory;
    unsigned int flags; /* of host memory */
};

bool cb_range_add(uint64_t address, uint64_t bytes, enum cb_memory memory, unsigned int flags);
/* The one that begins there leaves; false: there is none of that memory. */
bool cb_range_drop(uint64_t address, enum cb_memory memory, struct cb_range *out);
/* The one that the address is in. */
bool cb_range_of(uint64_t address, struct cb_range *out);
/* Whether all of it is in one range of device memory. */
bool cb_range_is_device(uint64_t address, uint64_t bytes);

#endif
