/* Copies as boxes of rows. */
#ifndef CALABASH_SIM_CUDA_MEMORY_COPY_H
#define CALABASH_SIM_CUDA_MEMORY_COPY_H

#include "sim/cuda/stream/stream_work.h"

#define COPY_BYTES       128          /* space for the argument of a copy's or a fill's work */
#define COPY_HEAVY_BYTES (256u << 10) /* the effect of larger copies is deferred to another thread */

/* `depth` slices of `height` rows of `width` bytes, each side with its own pitches. */
struct side {
    uint64_t base;
    uint64_t pitch, slice;
};

struct box {
    struct side to, from;
    uint64_t width, height, depth;
};

struct end { /* one end of a described copy */
    CUmemorytype type;
    uint64_t host, device, pitch, height, x, y, z;
    CUarray array;
};

/* Check both ends and make the box between them. */
CUresult copy_box(const struct end *to, const struct end *from, size_t width, size_t height, size_t depth,
                  struct box *b);
void copy_ends(const CUDA_MEMCPY3D *p, struct end *to, struct end *from);
CUresult copy_submit(CUstream hStream, const struct box *b, bool waits);
bool copy_readable(uint64_t address, uint64_t bytes);
uint64_t copy_time(struct context *c, uint64_t to, uint64_t from, uint64_t bytes);

/* A node's copy as work; `buffer` has COPY_BYTES. */
CUresult copy_prepare(struct context *c, const CUDA_MEMCPY3D *p, struct work *w, unsigned char *buffer);
void copy_describe(const struct work *w, CUDA_MEMCPY3D *out);

#endif
