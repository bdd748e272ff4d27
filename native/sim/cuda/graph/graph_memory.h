/* Memory of graphs. */
#ifndef CALABASH_SIM_CUDA_GRAPH_GRAPH_MEMORY_H
#define CALABASH_SIM_CUDA_GRAPH_GRAPH_MEMORY_H

#include "sim/cuda/memory/address_space.h"
#include "sim/cuda/process/process.h"

/*
 * Memory of an allocation node: it has an address from the creation of the node, and is charged from the first
 * launch until it is free and has no references.
 */
struct graph_memory {
    uint32_t references;
    bool live;
    struct range *range;
    struct device *device;
};

CUresult graph_memory_new(struct device *d, size_t bytes, struct graph_memory **out);
void graph_memory_release(struct graph_memory *m);
/* Charge it (once) and let the program access it. */
CUresult graph_memory_use(struct graph_memory *m);
void graph_memory_unuse(struct graph_memory *m);
/* Free graph memory on behalf of the program; return false if it is not in use. */
bool graph_memory_free(struct range *r);
/* Memory of an allocation node at this address, or NULL. */
struct graph_memory *graph_memory_at(CUdeviceptr address);

#endif
