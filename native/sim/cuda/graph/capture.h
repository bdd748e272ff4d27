/* Captures under way, and what they forbid. */
#ifndef CALABASH_SIM_CUDA_GRAPH_CAPTURE_H
#define CALABASH_SIM_CUDA_GRAPH_CAPTURE_H

#include "sim/cuda/stream/event.h"
#include "sim/cuda/stream/stream.h"

struct graph;
struct node;

struct session { /* one capture */
    struct graph *graph;
    struct stream *origin;
    pthread_t thread;
    CUstreamCaptureMode mode;
    bool invalid;
    bool foreign; /* the graph was the caller's before */
    uint64_t id;
    struct session *next;
};

struct capture { /* a stream's part */
    struct session *session;
    struct node **tail; /* what its next node will follow */
    size_t count;
};

/* A session counts from begin to end; end frees it. */
void capture_session_begin(struct session *i);
void capture_session_end(struct session *i);
/* The next node of the stream follows these, or these as well; false without memory. */
bool capture_follow(struct capture *c, struct node *const *nodes, size_t count);
bool capture_follow_also(struct capture *c, struct node *const *nodes, size_t count);
/* Work in the legacy stream would have to wait for a capturing stream. */
bool capture_is_implicit(struct stream *s, bool invalidates);
/* CUDA_SUCCESS, or the error of a call that is forbidden while the calling thread captures. */
CUresult capture_forbids(void);
/* A call that a capturing stream forbids was made: the capture is void. */
CUresult capture_refuse(struct stream *s);
/* True with the result when the call is the capture's affair. */
bool capture_record(struct stream *s, struct event *e, CUresult *result);
bool capture_wait(struct stream *s, struct event *e, CUresult *result);

#endif
