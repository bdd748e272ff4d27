/*
 * Mirrored memory: memory of this process that devices use as well, that is managed memory and mapped pinned
 * memory. Changes by the program are sent to the worker before a command that may use the memory; changes by
 * devices are fetched when the program has waited for them.
 */
#ifndef CALABASH_REMOTE_CLIENT_MEMORY_MIRRORED_MEMORY_H
#define CALABASH_REMOTE_CLIENT_MEMORY_MIRRORED_MEMORY_H

#include "remote/client/api/base.h"

/* Start mirroring. `managed`: the program does not touch it between a command and the next wait. */
bool cb_mirror_add(uint64_t address, uint64_t bytes, bool managed);
void cb_mirror_drop(uint64_t address);

#endif
