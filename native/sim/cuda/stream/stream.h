/* Streams, and points in their effects. */
#ifndef CALABASH_SIM_CUDA_STREAM_STREAM_H
#define CALABASH_SIM_CUDA_STREAM_STREAM_H

#include "sim/cuda/context/context.h"

struct capture;
struct work;

struct stream {
    struct object object;
    struct context *context;
    struct stream *next;
    uint64_t id;
    uint32_t flags;
    int priority;
    bool legacy, per_thread, dying;
    bool orphaned;     /* its green context was destroyed before it: the handle stays, and returns an error */
    pthread_t owner;   /* of a per-thread stream */
    uint64_t last;     /* 1 + number of its last posted entry */
    uint64_t pushed;   /* deferred operations ever queued */
    uint64_t finished; /* ...and ever finished */
    uint32_t unposted; /* number of the waiting operations that are not posted yet */
    struct work *head, *tail;
    bool thread_started;
    pthread_t thread;
    struct capture *capture;
    uint32_t sync_policy;
};

/* A position in the effects of a stream; always reached once the stream is destroyed. */
struct depend {
    struct stream *stream;
    uint64_t id;
    uint64_t finished;
};

/* A new stream in its context's list; NULL without memory. */
struct stream *stream_new(struct context *c, unsigned int flags, int priority);
/* Resolve a stream argument in the current context: NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD included.
 */
CUresult stream_get(CUstream handle, struct stream **out);

#define STREAM_OR_RETURN(s, handle) \
    struct stream *s;               \
    OK_OR_RETURN(stream_get(handle, &s))

/* Take `s` out of its context's list; the context's lock is held. */
void stream_unlink(struct stream *s);
/* Free a stream that is not used any more. */
void stream_free(struct stream *s);
/* 1 + number of the entry that work in `s` now follows; and note that `last` was posted for it. */
uint64_t stream_last(const struct stream *s);
void stream_posted(struct stream *s, uint64_t last);
bool depend_is_met(const struct depend *d);

static inline bool stream_blocks(const struct stream *s)
{
    return !(s->flags & CU_STREAM_NON_BLOCKING);
}

#endif
