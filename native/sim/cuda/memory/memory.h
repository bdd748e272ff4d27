/* Linear memory: its charges, and checks of access. */
#ifndef CALABASH_SIM_CUDA_MEMORY_MEMORY_H
#define CALABASH_SIM_CUDA_MEMORY_MEMORY_H

#include "sim/cuda/context/context.h"
#include "sim/cuda/memory/address_space.h"

/* Allocate and charge memory; the base goes to *out. */
CUresult memory_take(struct context *c, struct device *d, uint64_t bytes, enum memory memory,
                     struct range **out);
/* Register a function that releases cached memory when a card is full; it returns whether it released any. */
void memory_when_full(bool (*give_back)(struct device *d));
void memory_drop(struct range *r);
/* Return true if the caller may free it: false if another thread is about to. */
bool memory_claim(struct range *r);
/* Return true if `c` may access [address, address + bytes) as device memory (or mapped host memory). */
bool memory_allows(struct context *c, uint64_t address, uint64_t bytes);
/* The accessible memory around `address`, as far as `c` may access it: [*base, *end). */
bool memory_span(struct context *c, uint64_t address, uint64_t *base, uint64_t *end);
/* Return true if the address lies in allocated, mapped or registered memory. */
bool memory_knows(uint64_t address);
/* As above for either side of a copy: addresses outside our range are the program's own. */
bool memory_is_ours(uint64_t address);
/* Return true if this process has managed memory whose residency is tracked. */
bool memory_is_tracked(void);
/* If there is managed memory at `address`, add it to what work of `c` touches; return the new count. */
uint32_t memory_touch(const struct context *c, uint64_t address, uint64_t bytes, struct sim_touch *out,
                      uint32_t count);
/* Note that the same memory was written from the host's side. */
void memory_written(const struct context *c, uint64_t address, uint64_t bytes);

#endif
