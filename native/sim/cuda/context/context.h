/*
 * Contexts. A context is one timeline: its kernels and copies go to its engine queue in the order in which they
 * are issued, which is always a legal order of its streams.
 */
#ifndef CALABASH_SIM_CUDA_CONTEXT_CONTEXT_H
#define CALABASH_SIM_CUDA_CONTEXT_CONTEXT_H

#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"

struct event;
struct stream;

struct context {
    struct object object;
    struct device *device;
    struct context *next;
    uint64_t id;
    uint32_t flags;
    bool primary;
    struct context *parent; /* of a green context: the primary one, whose memory and modules it uses */
    void *green;            /* ...and its handle */
    uint32_t sm_count;      /* ...and its number of multiprocessors; 0: all */
    bool active;            /* a primary context has an address before and after its life */
    int queue;
    uint32_t fatal_epoch, instance_epoch;
    CUresult sticky;
    uint64_t ending_ns;   /* it is being destroyed since then */
    pthread_mutex_t lock; /* streams, events and the posting of work */
    pthread_cond_t changed;
    struct stream *streams;
    struct stream *legacy;
    uint64_t last_blocking; /* 1 + number of the last entry posted by a blocking stream */
    uint32_t deferred;      /* operations waiting in stream threads */
    struct event **marks;   /* [SIM_QUEUE_ENTRIES]: events whose time is the end of the entry at this index */
    size_t limit[CU_LIMIT_MAX];
    uint64_t peers; /* ordinals with peer access enabled */
    CUfunc_cache cache_config;
    CUsharedconfig shared_config;
};

/* The stack of the calling thread: push, false if it is full; the top, which may have been destroyed since. */
bool context_push(struct context *c);
struct context *context_top(void);
/* Pop the top; NULL if the stack is empty. */
struct context *context_pop(void);
void context_set_current(struct context *c);

struct context *context_current(void);
/* The current context if it is usable; *out is set on success. */
CUresult context_enter(struct context **out);

#define CONTEXT_OR_RETURN(c) \
    struct context *c;       \
    OK_OR_RETURN(context_enter(&c))

/* Owner of what is made in a context: for a green context the primary one. */
static inline struct context *context_home(struct context *c)
{
    return c && c->parent ? c->parent : c;
}

CUresult context_health(struct context *c);
/* The object of the device's primary context, perhaps not active. */
struct context *context_of_primary(struct device *d);
bool context_flags_are_valid(unsigned int flags);

#endif
