/* The structure of graphs. */
#ifndef CALABASH_SIM_CUDA_GRAPH_GRAPH_H
#define CALABASH_SIM_CUDA_GRAPH_GRAPH_H

#include "sim/cuda/graph/graph_memory.h"
#include "sim/cuda/graph/user_object.h"
#include "sim/cuda/stream/stream_work.h"

enum node_kind {
    NODE_KERNEL,
    NODE_MEMCPY,
    NODE_MEMSET,
    NODE_HOST,
    NODE_GRAPH,
    NODE_EMPTY,
    NODE_WAIT_EVENT,
    NODE_RECORD_EVENT,
    NODE_ALLOC,
    NODE_FREE,
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

struct graph {
    struct object object;
    struct held *held;
    struct node *first, *last;
    size_t count;
    bool owned; /* a child, or the copy inside an executable: its handle cannot be destroyed */
};

struct graph *graph_new(void);
void graph_free(struct graph *g);
struct graph *graph_clone(const struct graph *g);
struct node *node_new(struct graph *g, enum node_kind kind, struct node *const *depend, size_t count);
void node_free(struct node *n);
bool node_depend(struct node *n, struct node *on);
bool node_set_work(struct node *n, const struct work *w);
/* The node of `g` (or of a child in it) that was cloned from `origin`. */
struct node *graph_find(struct graph *g, const struct node *origin);
/*
 * Nodes in an order that respects dependencies; the caller frees it. NULL if there is a cycle (or no memory).
 */
struct node **graph_order(struct graph *g);

#endif
