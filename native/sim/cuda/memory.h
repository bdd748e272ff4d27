/* Linear memory: what it costs and who may touch it. */
#ifndef CALABASH_SIM_CUDA_MEMORY_H
#define CALABASH_SIM_CUDA_MEMORY_H

#include "sim/cuda/context.h"
#include "sim/cuda/space.h"

/* Take and charge memory; the base goes to *out. */
CUresult memory_take(struct context *c, struct device *d, uint64_t bytes, enum memory memory,
                     struct range **out);
/* What to ask for memory that is kept and not used before a card is said to be full; it answers whether it
 * gave any back. */
void memory_when_full(bool (*give_back)(struct device *d));
void memory_drop(struct range *r);
/* Whether `c` may touch [address, address + bytes) as device memory (or mapped host memory). */
bool memory_allows(struct context *c, uint64_t address, uint64_t bytes);
/* Whether the address lies in something that was allocated, mapped or registered. */
bool memory_knows(uint64_t address);
/* As above for either side of a copy: addresses outside our range are the program's own. */
bool memory_is_ours(uint64_t address);

#endif
