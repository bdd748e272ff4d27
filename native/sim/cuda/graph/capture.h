/* Captures under way, and the calls that they forbid. */
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
    bool foreign; /* the graph was passed by the caller */
    uint64_t id;
    struct session *next;
};

struct capture { /* a stream's part in a capture */
    struct session *session;
    struct node **tail; /* nodes that its next node will follow */
    size_t count;
};

/* A session is listed from begin to end; end frees it. */
void capture_session_begin(struct session *i);
void capture_session_end(struct session *i);
/* Let the next node of the stream follow these, or these as well; return false without memory. */
bool capture_follow(struct capture *c, struct node *const *nodes, size_t count);
bool capture_follow_also(struct capture *c, struct node *const *nodes, size_t count);
/* Return true if work in the legacy stream would have to wait for a capturing stream. */
bool capture_is_implicit(struct stream *s, bool invalidates);
/* CUDA_SUCCESS, or the error of a call that is forbidden while the calling thread captures. */
CUresult capture_forbids(void);
/* Invalidate the capture, after a call that a capturing stream forbids. */
CUresult capture_refuse(struct stream *s);
/* Return true, with the result, if the capture handles the call. */
bool capture_record(struct stream *s, struct event *e, CUresult *result);
bool capture_wait(struct stream *s, struct event *e, CUresult *result);

#endif
