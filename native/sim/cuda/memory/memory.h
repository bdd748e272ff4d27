/* Linear memory: what it costs and who may touch it. */
#ifndef CALABASH_SIM_CUDA_MEMORY_MEMORY_H
#define CALABASH_SIM_CUDA_MEMORY_MEMORY_H

#include "sim/cuda/context/context.h"
#include "sim/cuda/memory/address_space.h"

/* Take and charge memory; the base goes to *out. */
CUresult memory_take(struct context *c, struct device *d, uint64_t bytes, enum memory memory,
                     struct range **out);
/* What to ask for memory that is kept and not used before a card is said to be full; it answers whether it
 * gave any back. */
void memory_when_full(bool (*give_back)(struct device *d));
void memory_drop(struct range *r);
/* Whether it is the caller's to drop: not when another thread is about to. */
bool memory_claim(struct range *r);
/* Whether `c` may touch [address, address + bytes) as device memory (or mapped host memory). */
bool memory_allows(struct context *c, uint64_t address, uint64_t bytes);
/* What lies at `address`, as far as `c` may touch it: [*base, *end). */
bool memory_span(struct context *c, uint64_t address, uint64_t *base, uint64_t *end);
/* Whether the address lies in something that was allocated, mapped or registered. */
bool memory_knows(uint64_t address);
/* As above for either side of a copy: addresses outside our range are the program's own. */
bool memory_is_ours(uint64_t address);
/* Whether this process has managed memory whose place is followed. */
bool memory_is_followed(void);
/* Adds the managed memory at `address`, if that is what lies there, to what work of `c` touches; the new count. */
uint32_t memory_touch(const struct context *c, uint64_t address, uint64_t bytes, struct sim_touch *out,
                      uint32_t count);
/* The same memory has been written from the host's side. */
void memory_written(const struct context *c, uint64_t address, uint64_t bytes);

#endif
