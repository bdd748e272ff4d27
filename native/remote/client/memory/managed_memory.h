/* Managed memory: the worker's driver says where, and this process has pages of its own there. */
#ifndef CALABASH_REMOTE_CLIENT_MEMORY_MANAGED_MEMORY_H
#define CALABASH_REMOTE_CLIENT_MEMORY_MANAGED_MEMORY_H

#include "remote/client/memory/memory_ranges.h"

/* It is to be freed: the worker forgets that we have it, too. */
void cb_managed_end(const struct cb_range *r);

#endif
