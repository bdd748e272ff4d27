/*
 * Memory of this process that devices use, too: managed memory, and pinned memory that is mapped. What the program wrote
 * goes to the worker before a command that may use it; what devices wrote comes when the program has waited for them.
 */
#ifndef CALABASH_REMOTE_CLIENT_MEMORY_MIRRORED_MEMORY_H
#define CALABASH_REMOTE_CLIENT_MEMORY_MIRRORED_MEMORY_H

#include "remote/client/api/base.h"

/* From now on the worker has it, too. `managed`: the program leaves it alone between a command and the next wait. */
bool cb_twin_add(uint64_t address, uint64_t bytes, bool managed);
void cb_twin_drop(uint64_t address);

#endif
