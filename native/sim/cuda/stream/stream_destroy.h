/* The end of streams. */
#ifndef CALABASH_SIM_CUDA_STREAM_STREAM_DESTROY_H
#define CALABASH_SIM_CUDA_STREAM_STREAM_DESTROY_H

#include "sim/cuda/stream/stream.h"

/* The context's lock is held. */
void stream_end(struct stream *s);
/* End all streams of a context and wait until they are gone. */
void stream_release_all(struct context *c);

#endif
