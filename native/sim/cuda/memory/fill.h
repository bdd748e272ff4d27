/* Fills of memory as work. */
#ifndef CALABASH_SIM_CUDA_MEMORY_FILL_H
#define CALABASH_SIM_CUDA_MEMORY_FILL_H

#include "sim/cuda/stream/stream_work.h"

/* A node's fill as work; `buffer` has COPY_BYTES. */
CUresult fill_prepare(struct context *c, const CUDA_MEMSET_NODE_PARAMS *p, struct work *w,
                      unsigned char *buffer);
void fill_describe(const struct work *w, CUDA_MEMSET_NODE_PARAMS *out);

#endif
