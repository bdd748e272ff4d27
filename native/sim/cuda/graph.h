/*
 * Graphs inside the simulated driver: what the structure, the nodes, capture and execution share.
 */
#ifndef CALABASH_SIM_CUDA_GRAPH_H
#define CALABASH_SIM_CUDA_GRAPH_H

#include "sim/cuda/internal.h"

/* Memory of an allocation node: an address from the making of the node on, charged from the first launch
 * until nobody refers to it and it is free. */
struct graph_memory {
    uint32_t references;
    bool live;
    struct range *range;
    struct device *device;
};

struct node {
    struct object object;
    struct graph *graph;
    struct node *next;   /* in order of creation */
    struct node *origin; /* the node that this one was cloned from */
    enum node_kind kind;
    bool disabled;
    uint32_t mark;
    struct node **depend;
    size_t depend_count;
    struct work work; /* of kernels, copies, fills and host functions; the argument is owned */
    CUDA_KERNEL_NODE_PARAMS kernel;
    void **kernel_pointers;
    CUDA_HOST_NODE_PARAMS host;
    struct graph *child; /* owned */
    struct event *event;
    struct graph_memory *memory;
};

struct held { /* a user object that a graph keeps */
    struct user *user;
    unsigned int count;
    struct held *next;
};

struct graph {
    struct object object;
    struct held *held;
    struct node *first, *last;
    size_t count;
    bool owned; /* a child, or the copy inside an executable: its handle cannot be destroyed */
};

struct exec {
    struct object object;
    struct graph *graph;
    uint64_t flags;
};

struct graph *graph_new(void);
bool graph_hold_all(struct graph *to, const struct graph *from);
void graph_release_all(struct graph *g);
void graph_free(struct graph *g);
struct graph *graph_clone(const struct graph *g);
struct node *node_new(struct graph *g, enum node_kind kind, struct node *const *depend, size_t count);
void node_free(struct node *n);
bool node_depend(struct node *n, struct node *on);
bool node_set_work(struct node *n, const struct work *w);
/* The node of `g` (or of a child in it) that was cloned from `origin`. */
struct node *graph_find(struct graph *g, const struct node *origin);
/* Nodes in an order that respects dependencies; the caller frees it. NULL when there is a cycle (or no
 * memory). */
struct node **graph_order(struct graph *g);
CUresult graph_run(struct graph *g, struct stream *s);

CUresult graph_memory_new(struct device *d, size_t bytes, struct graph_memory **out);
void graph_memory_release(struct graph_memory *m);
/* Charge it (once) and let the program touch it. */
CUresult graph_memory_use(struct graph_memory *m);
void graph_memory_unuse(struct graph_memory *m);
/* The memory of an allocation node at this address, or NULL. */
struct graph_memory *graph_memory_at(CUdeviceptr address);

/* Fill a node from public parameters. */
CUresult node_set_kernel(struct node *n, struct context *c, const CUDA_KERNEL_NODE_PARAMS *p);
CUresult node_set_copy(struct node *n, struct context *c, const CUDA_MEMCPY3D *p);
CUresult node_set_fill(struct node *n, struct context *c, const CUDA_MEMSET_NODE_PARAMS *p);
CUresult node_set_host(struct node *n, const CUDA_HOST_NODE_PARAMS *p);
CUresult node_set_any(struct node *n, struct context *c, const CUgraphNodeParams *p);

#endif
