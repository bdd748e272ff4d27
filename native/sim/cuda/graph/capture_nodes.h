/* Conversion of work issued to a capturing stream into graph nodes. */
#ifndef CALABASH_SIM_CUDA_GRAPH_CAPTURE_NODES_H
#define CALABASH_SIM_CUDA_GRAPH_CAPTURE_NODES_H

#include "sim/cuda/graph/capture.h"
#include "sim/cuda/graph/graph.h"
#include "sim/cuda/memory/memory_pool.h"

/* If `s` captures, append a node that does `w` (its argument is copied) and return true with the result. */
bool capture_work(struct stream *s, enum node_kind kind, const struct work *w, const void *params,
                  size_t bytes, CUresult *result);
CUresult capture_alloc(struct stream *s, struct pool *p, size_t bytes, CUdeviceptr *out);
CUresult capture_free(struct stream *s, CUdeviceptr address);
CUresult capture_graph(struct stream *s, struct graph *g);
/* The stream is destroyed: invalidate its part of the capture, or the whole capture if the stream began it. */
void capture_abandon(struct stream *s);

#endif
