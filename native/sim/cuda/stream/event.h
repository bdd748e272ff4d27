/* Events. */
#ifndef CALABASH_SIM_CUDA_STREAM_EVENT_H
#define CALABASH_SIM_CUDA_STREAM_EVENT_H

#include "sim/cuda/stream/stream.h"

struct node;

struct event {
    struct object object;
    struct context *context; /* where it was recorded last: in a green context, or in... */
    uint64_t context_id;
    struct context *home; /* the context that made it */
    uint64_t home_id;
    uint32_t references; /* deferred work that refers to it */
    uint32_t flags;
    enum { EVENT_NEVER, EVENT_PENDING, EVENT_POSTED, EVENT_DONE } state;
    uint64_t recorded_ns;
    uint64_t number;     /* 1 + entry whose end is the event's time; 0: none */
    uint64_t end_ns;     /* valid in EVENT_DONE */
    uint64_t generation; /* number of times it was recorded */
    /* 1 + last entry of records before the newest, whose ends are not needed any more; 0: none */
    uint64_t superseded;
    struct depend effects; /* effects on memory that must have happened when the event is complete */
    struct event *next_mark;
    bool marked;
    struct capture *capture; /* recorded in a stream that captures */
    uint64_t capture_id;
    struct node **capture_nodes;
    size_t capture_count;
};

/* The live event behind a handle; *out is set on success. */
CUresult event_get(CUevent handle, struct event **out);
/* The context of an event, if it still is the one that made the event. */
struct context *event_context(const struct event *e);
/* Both require the context's lock. */
void event_stamp(struct context *c, struct event *e, uint64_t last, struct depend effects,
                 uint64_t recorded_ns);
void event_unmark(struct event *e);
bool event_effects_done(const struct event *e);
/* Count deferred work that refers to the event, which keeps it alive beyond its handle. */
void event_hold(struct event *e);
void event_release(struct event *e);
/* The context is destroyed: no event may wait for its queue any more. */
void events_drop_all(struct context *c);
/* Prepare a record in `c`; return false if that is not a context of its home. */
bool event_move(struct event *e, struct context *c);
bool event_done(struct event *e);
CUresult event_wait(struct event *e);
/*
 * Called if it is recorded again, or if its record is posted too late: the entry before it is kept. Requires
 * the context's lock.
 */
void event_supersede(struct event *e, uint64_t last);
/*
 * As event_wait(), for the record that was the newest when `generation` was read; 0: the newest. Later records,
 * perhaps behind this very wait, are not waited for. The record's effects have happened.
 */
void event_wait_for(struct event *e, uint64_t generation);

#endif
