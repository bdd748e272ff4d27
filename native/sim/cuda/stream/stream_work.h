/*
 * Operations of streams. The effect of an operation on memory happens at once in the issuing thread if it is
 * small and nothing earlier is outstanding; otherwise it is deferred to the stream's own thread. Host functions
 * and waits for values have no modelled time: work behind them is posted when they have ended.
 */
#ifndef CALABASH_SIM_CUDA_STREAM_STREAM_WORK_H
#define CALABASH_SIM_CUDA_STREAM_STREAM_WORK_H

#include "sim/cuda/stream/event.h"
#include "sim/cuda/stream/stream.h"
#include "sim/node/state.h"

enum work_kind { WORK_TIMED, WORK_EFFECT, WORK_HOST, WORK_RECORD, WORK_WAIT };

/*
 * One operation of a stream. `effect` may be NULL; it runs in stream order and returns an error for the
 * context.
 */
struct work {
    enum work_kind kind;
    enum sim_work engine;
    uint64_t duration_ns;
    uint32_t sms;                                              /* multiprocessors that it needs; 0: all */
    uint64_t (*late)(struct context *c, const void *argument); /* the duration is known after the effect */
    bool heavy;                                                /* its effect is deferred to another thread */
    CUresult (*effect)(struct context *c, void *argument);
    void *argument;
    size_t argument_bytes; /* copied when the work is deferred */
    void (*release)(void *argument);
    struct event *event;
    uint64_t event_generation;
    struct depend after; /* one more dependency; stream NULL: none */
    uint32_t touches;    /* managed memory that it uses, if its residency is tracked */
    struct sim_touch touch[SIM_TOUCH_MAX];
    /* filled when deferred */
    struct work *next;
    bool posted;
    uint64_t number;
    size_t depend_count;
    struct depend depend[];
};

CUresult stream_submit(struct stream *s, const struct work *w);
CUresult stream_submit_and_wait(struct stream *s, const struct work *w);
CUresult stream_wait(struct stream *s);
bool stream_idle(struct stream *s);
CUresult context_synchronize(struct context *c);
/* Wait until no work is under way in any context. */
void contexts_wait(void);

/*
 * Let the next operation in a stream follow this entry of its context's queue as well. Requires the context's
 * lock.
 */
void stream_follow(struct stream *s, uint64_t last);

#endif
