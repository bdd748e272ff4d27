/*
 * Measuring launches without ever waiting for the GPU; private to the compute limiter.
 *
 * Theory of operation. A *fence* is an event behind some launches of one stream; when it has completed, the
 * estimated time of these launches leaves the books. A fence that has a second event in front of exactly one
 * launch is also a *sample* of that launch's time. Fences are set every half millisecond of estimated work,
 * every 64 launches, or at every launch when what is not known to be done grows large, so that work without a
 * fence never fills the allowance. They are looked at (cuEventQuery) when the next fence is set and while a
 * launch waits at the gate; nobody ever blocks on one.
 *
 * A sample can only be too long, never too short: neighbours on a time-sliced card, siblings of the same
 * container, other streams of the same process, or a host that was slow between the two calls all stretch it.
 * So samples come in two qualities. *Clean*: nobody else launched or had work in flight from begin to end,
 * the card was ours (uncontended, or inside our own turn), and the kernel was queued before the card reached
 * the first event. Clean samples feed a moving mean, which is right for kernels whose time varies. All others
 * count only where there are none of these: then the estimate follows their minimum; and where a run of them
 * lies clearly below the mean.
 */
#ifndef CALABASH_SHIM_COMPUTE_MEASURE_H
#define CALABASH_SHIM_COMPUTE_MEASURE_H

#include "shim/compute.h"

#define CB_INFLIGHT_NS     5000000u  /* work ahead of the card, for which a neighbour waits at worst */
#define CB_INFLIGHT_NS_MAX 20000000u /* the same as counted by fences, which are read late */
#define CB_OVERLAP_NS      4000000u  /* for kernels from here on a neighbour's last moments do not matter */
#define CB_UNKNOWN_NS      50000u    /* charged for a launch never measured, and corrected afterwards */
#define CB_UNKNOWN_PENDING 1u        /* launches of one never measured key in flight */
#define CB_FENCE_NS        500000u
#define CB_FENCE_LAUNCHES  64u
#define CB_LONG_NS         500000u /* kernels from here on are all measured */

#define CB_ESTIMATES 4096u
#define CB_STREAMS   512u
#define CB_FENCES    256u

struct cb_estimate {
    uint64_t key;     /* 0: free */
    uint64_t mean_ns; /* 0: never measured */
    uint64_t sampled_ns;
    uint32_t clean;   /* clean samples seen, up to 255 */
    uint32_t unclean; /* samples of the other kind since the last clean one */
    uint32_t pending; /* samples under way */
    uint32_t outliers;
    uint64_t
        run_ns; /* of the last `run` unclean samples: the most of those below, the least of those above */
    uint32_t run;
    uint32_t spare[3];
};

struct cb_stream {
    uint64_t key; /* 0: free */
    uint64_t unfenced_ns;
    uint64_t unfenced_count;
    uint64_t inflight_ns; /* fenced and not fenced */
    uint64_t launch_count;
    uint64_t last_ns;
    uint32_t device; /* of its last launch */
    uint32_t spare[3];
};

enum cb_fence_state { CB_FENCE_FREE = 0, CB_FENCE_FILLING = 1, CB_FENCE_PENDING = 2, CB_FENCE_POLLING = 3 };

struct cb_fence {
    uint32_t device;
    CUcontext context;
    CUevent start, end;
    uint64_t amount_ns;   /* leaves the books when the fence completes */
    uint64_t expected_ns; /* when that is expected, by the clock of the host */
    /* of a sample */
    struct cb_estimate *estimate; /* NULL: no sample */
    struct cb_stream *entry;
    uint64_t cost_ns;
    uint64_t began_ns;
    uint64_t others;   /* launches by anybody else up to the beginning */
    uint64_t until_ns; /* completed by then: the card was ours all the time; 0: it was not */
    uint32_t word;
    uint32_t gate;
    uint32_t sharers; /* of a first sample: processes that had work on the card when it began */
    bool clean;
    bool dead; /* its context is gone: do not touch the events */
};

/* One device of this container, as the limiter sees it. */
struct cb_device_view {
    const struct cb_limits_device *limits;
    struct cb_usage_device *usage;
    uint64_t *own_inflight_ns; /* this process's part */
    uint64_t *own_until_ns;
    uint32_t index;
};

struct cb_device_view cb_compute_view(uint32_t device);

/* Processes of this container with work in flight, and the neighbours: among so many the card divides its
 * time. */
uint32_t cb_compute_sharers(uint32_t device);
uint64_t cb_clock_ns(void);

struct cb_estimate *cb_estimate_find(uint64_t key);
struct cb_stream *cb_stream_find(CUstream stream, bool per_thread);
bool cb_stream_captures(CUstream stream, bool per_thread);

/*
 * Whether this launch should be a sample, by the age and number of samples of its key. `poor`: it could not
 * be a clean one, because the card is idle and would wait for us between our calls, or because it is not ours
 * for certain.
 */
bool cb_sample_due(struct cb_estimate *estimate, bool poor, uint64_t now_ns);

/* Begin a sample in front of the launch; NULL when no event is to be had. */
struct cb_fence *cb_sample_begin(const struct cb_launch *launch, uint64_t until_ns, uint32_t word,
                                 uint32_t gate);

/* Behind the launch: end its sample, or set a fence if one is due. */
void cb_fence_end(const struct cb_launch *launch);
void cb_fence_drop(struct cb_fence *fence);

/* Look at fences that may have completed, at most `misses` that have not; true when any had. */
bool cb_fences_poll(uint32_t device, unsigned misses);

/* When the first fence of this process on `device` is expected to complete; 0: none is pending. */
uint64_t cb_fences_expected(uint32_t device);

/* Take up to `amount_ns` out of the books of this process and its container. */
void cb_inflight_drop(uint32_t device, uint64_t amount_ns);

/* Books what the calling thread has launched in advance, and ends what it may launch so; compute.c. */
void cb_advance_book(void);

void cb_measure_age(uint64_t now_ns, uint64_t age_ns);
void cb_measure_reset(void);

extern struct cb_compute_driver cb_compute_driver __attribute__((visibility("hidden")));

#endif
