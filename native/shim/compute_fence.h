/*
 * Measurement of launches without waiting for the GPU.
 *
 * Theory of operation. A *fence* is an event behind some launches of one stream; when it has completed, the
 * estimated time of these launches is removed from the counters. A fence that has a second event in front of
 * exactly one launch is also a *sample* of that launch's time. Fences are set every half millisecond of
 * estimated work, every 64 launches, or at every launch when the work not known to be done grows large, so that
 * work without a fence never fills the allowance. They are polled (cuEventQuery) when the next fence is set and
 * while a launch waits at the gate; no thread ever blocks on one.
 */
#ifndef CALABASH_SHIM_COMPUTE_FENCE_H
#define CALABASH_SHIM_COMPUTE_FENCE_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "shim/compute_limiter.h"

/* How a launch is accounted; in struct cb_launch. */
enum cb_tracked {
    CB_UNTRACKED = 0, /* passes without charge */
    CB_TRACKED = 1,
    CB_TRACKED_RATE = 2,    /* charged to the bucket, too */
    CB_TRACKED_ADVANCE = 3, /* covered by the grant of its thread */
};

/* State that cb_launch_begin() passes to cb_launch_end(). Lives on the hook's stack; its content is private. */
struct cb_launch {
    uint32_t tracked; /* enum cb_tracked */
    uint32_t device;
    uint64_t cost_ns; /* what it was charged */
    uint64_t begin_ns;
    struct cb_estimate *estimate;
    struct cb_stream *entry;
    struct cb_fence *fence; /* measures this launch; NULL: not measured */
    CUstream stream;
    bool per_thread;
};

enum cb_fence_state { CB_FENCE_FREE = 0, CB_FENCE_FILLING = 1, CB_FENCE_PENDING = 2, CB_FENCE_POLLING = 3 };

struct cb_fence {
    uint32_t device;
    CUcontext context;
    CUevent start, end;
    uint64_t amount_ns;   /* removed from the counters when the fence completes */
    uint64_t expected_ns; /* when that is expected, by the clock of the host */
    /* of a sample */
    struct cb_estimate *estimate; /* NULL: no sample */
    struct cb_stream *entry;
    uint64_t cost_ns;
    uint64_t told_ns;    /* charged while a kernel that was never measured ran, beyond cost_ns */
    uint64_t running_ns; /* up to when that was charged; 0: it was not seen to run */
    uint64_t began_ns;
    uint64_t first_ns; /* when the first of the launches was made */
    uint64_t others;   /* launches by other processes up to the beginning */
    uint64_t until_ns; /* if completed by then, the card was used by this container only; 0: it was not */
    uint32_t word;
    uint32_t gate;
    uint32_t sharers; /* of a first sample: processes that had work on the card when it began */
    bool clean;
    bool fresh;   /* its stream was idle: the launch began when it was made, */
    bool chained; /* or when the sample before it in its stream was done */
    bool beside;  /* other streams of this process had work */
    bool dead;    /* its context has been destroyed: do not touch the events */
};

/*
 * Charge for a launch until it is measured: less than its kernel takes if kernels of this process have run side
 * by side, and other streams have work now.
 */
uint64_t cb_launch_cost(const struct cb_device_view *view, const struct cb_launch *launch);

/* Begin a sample in front of the launch; NULL if no event is available. */
struct cb_fence *cb_sample_begin(const struct cb_launch *launch, uint64_t until_ns, uint32_t word);

/* Behind the launch: end its sample, or set a fence if one is due. */
void cb_fence_end(const struct cb_launch *launch);
void cb_fence_drop(struct cb_fence *fence);

/* Poll fences that may have completed, at most `misses` that have not; return true if any had. */
bool cb_fences_poll(uint32_t device, unsigned misses);

/* When the first fence of this process on `device` is expected to complete; 0: none is pending. */
uint64_t cb_fences_expected(uint32_t device);

/* Drop the fences of a context that is about to be destroyed: its events are destroyed with it. */
void cb_fences_forget(CUcontext context);
void cb_fences_reset(void);

#endif
