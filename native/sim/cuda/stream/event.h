/* Events. */
#ifndef CALABASH_SIM_CUDA_STREAM_EVENT_H
#define CALABASH_SIM_CUDA_STREAM_EVENT_H

#include "sim/cuda/stream/stream.h"

struct node;

struct event {
    struct object object;
    struct context *context; /* in which it was recorded last: in a green one, or in... */
    uint64_t context_id;
    struct context *home; /* the one in which it was made */
    uint64_t home_id;
    uint32_t references; /* deferred work that names it */
    uint32_t flags;
    enum { EVENT_NEVER, EVENT_PENDING, EVENT_POSTED, EVENT_DONE } state;
    uint64_t recorded_ns;
    uint64_t number;     /* 1 + entry whose end is the event's time; 0: none */
    uint64_t end_ns;     /* valid in EVENT_DONE */
    uint64_t generation; /* how often it has been recorded */
    /* 1 + last entry of records before the newest, whose ends nobody notes any more; 0: none */
    uint64_t superseded;
    struct depend effects; /* what must have happened to memory when the event is complete */
    struct event *next_mark;
    bool marked;
    struct capture *capture; /* recorded in a stream that captures */
    uint64_t capture_id;
    struct node **capture_nodes;
    size_t capture_count;
};

/* The live event behind a handle; *out is set on success. */
CUresult event_get(CUevent handle, struct event **out);
/* The context of an event while it is the one in which the event was made. */
struct context *event_context(const struct event *e);
/* The context's lock is held for these two. */
void event_stamp(struct context *c, struct event *e, uint64_t last, struct depend effects,
                 uint64_t recorded_ns);
void event_unmark(struct event *e);
bool event_effects_done(const struct event *e);
/* Deferred work names the event, and no longer does: it outlives its handle by that. */
void event_hold(struct event *e);
void event_release(struct event *e);
/* The context ends: no event may wait for its books any more. */
void event_forget_all(struct context *c);
/* The event is to be recorded in `c`; false when that is no context of its home. */
bool event_move(struct event *e, struct context *c);
bool event_done(struct event *e);
CUresult event_wait(struct event *e);
/* Recorded anew, or its record's turn has come too late: the entry that it stood behind is not forgotten. The
 * context's lock is held. */
void event_supersede(struct event *e, uint64_t last);
/* As event_wait(), for the record that was the newest when `generation` was read; 0: the newest. What was recorded
 * since, perhaps behind this very wait, is not waited for. The record's effects have happened. */
void event_wait_for(struct event *e, uint64_t generation);

#endif
