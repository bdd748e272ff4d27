/* Setting the parameters of graph nodes from the public structures. */
#ifndef CALABASH_SIM_CUDA_GRAPH_GRAPH_NODE_H
#define CALABASH_SIM_CUDA_GRAPH_GRAPH_NODE_H

#include "sim/cuda/graph/graph.h"

CUresult node_set_kernel(struct node *n, struct context *c, const CUDA_KERNEL_NODE_PARAMS *p);
CUresult node_set_copy(struct node *n, struct context *c, const CUDA_MEMCPY3D *p);
CUresult node_set_fill(struct node *n, struct context *c, const CUDA_MEMSET_NODE_PARAMS *p);
CUresult node_set_host(struct node *n, const CUDA_HOST_NODE_PARAMS *p);
CUresult node_set_child(struct node *n, CUgraph child);
CUresult node_set_event(struct node *n, CUevent event);
CUresult node_set_free(struct node *n, CUdeviceptr address);
CUresult node_set_any(struct node *n, struct context *c, const CUgraphNodeParams *p);
/* (enum node_kind)-1: an unsupported type. */
enum node_kind node_kind_of(CUgraphNodeType type);

#endif
