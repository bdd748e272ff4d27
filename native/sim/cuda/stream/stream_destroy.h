/* Destruction of streams. */
#ifndef CALABASH_SIM_CUDA_STREAM_STREAM_DESTROY_H
#define CALABASH_SIM_CUDA_STREAM_STREAM_DESTROY_H

#include "sim/cuda/stream/stream.h"

/* Requires the context's lock. */
void stream_begin_destroy(struct stream *s);
/* Destroy all streams of a context and wait until they are freed. */
void stream_release_all(struct context *c);

#endif
