/* Managed memory: the worker's driver chooses the address, and this process maps pages of its own there. */
#ifndef CALABASH_REMOTE_CLIENT_MEMORY_MANAGED_MEMORY_H
#define CALABASH_REMOTE_CLIENT_MEMORY_MANAGED_MEMORY_H

#include "remote/client/memory/memory_ranges.h"

/* Called before it is freed: the worker stops mirroring it. */
void cb_managed_end(const struct cb_range *r);

#endif
