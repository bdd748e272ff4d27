/*
 * State shared by the parts of the compute limiter: the pages, the driver, the clock. Private to the limiter,
 * except for cb_compute_passes(), which hooks call first.
 */
#ifndef CALABASH_SHIM_COMPUTE_LIMITER_H
#define CALABASH_SHIM_COMPUTE_LIMITER_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "page/page.h"

#define CB_INFLIGHT_NS     5000000u /* work ahead of the card, the longest that another container waits for */
#define CB_INFLIGHT_NS_MAX 20000000u /* the same as counted by fences, which are read late */
#define CB_OVERLAP_NS \
    4000000u /* for kernels from here on the end of another container's window does not matter */
#define CB_UNKNOWN_NS      50000u /* charged for a launch never measured, and corrected afterwards */
#define CB_UNKNOWN_PENDING 1u     /* launches of one never measured key in flight */
#define CB_FENCE_NS        500000u
#define CB_FENCE_LAUNCHES  64u
#define CB_LONG_NS         500000u /* kernels at least this long are all measured */
#define CB_BESIDE_NS       100000u /* the same while other streams of the process have work */

/* The real driver, as the limiter needs it. Functions that the driver does not have are NULL. */
struct cb_compute_driver {
    CUresult(CUDAAPI *ctx_get_current)(CUcontext *);
    CUresult(CUDAAPI *event_create)(CUevent *, unsigned int);
    CUresult(CUDAAPI *event_destroy)(CUevent); /* cuEventDestroy_v2 */
    CUresult(CUDAAPI *event_record)(CUevent, CUstream);
    CUresult(CUDAAPI *event_record_ptsz)(CUevent, CUstream);
    CUresult(CUDAAPI *event_query)(CUevent);
    CUresult(CUDAAPI *event_elapsed_time)(float *, CUevent, CUevent);
    CUresult(CUDAAPI *stream_is_capturing)(CUstream, CUstreamCaptureStatus *);
    CUresult(CUDAAPI *stream_is_capturing_ptsz)(CUstream, CUstreamCaptureStatus *);
    CUresult(CUDAAPI *thread_exchange_capture_mode)(CUstreamCaptureMode *);
    /* Index in limits->device of the calling thread's current device; -1: none. Not called with one device.
     */
    int (*current_device)(void);
};

extern struct cb_compute_driver cb_compute_driver __attribute__((visibility("hidden")));
extern const struct cb_limits *cb_compute_limits __attribute__((visibility("hidden")));
extern uint32_t cb_captures __attribute__((visibility("hidden"))); /* streams under capture */

void cb_limiter_init(const struct cb_limits *limits, struct cb_usage *usage, struct cb_usage_proc *proc,
                     const struct cb_compute_driver *driver);
void cb_limiter_after_fork(struct cb_usage_proc *proc);

/* Return true if a device is under no compute limit at all right now, and its use is not metered. */
static inline bool cb_device_passes(const struct cb_limits_device *device)
{
    return device->policy == CB_POLICY_NONE ||
           (device->core_percent >= 100 && device->policy != CB_POLICY_METERED &&
            __atomic_load_n(&device->gate, __ATOMIC_RELAXED) == (uint32_t)CB_GATE_OPEN);
}

static inline bool cb_compute_passes(void)
{
    const struct cb_limits *limits = cb_compute_limits;
    if (__builtin_expect(limits == NULL, 0)) return true;
    if (!cb_device_passes(&limits->device[0])) return false;
    for (uint32_t i = 1; i < limits->device_count && i < CB_DEVICES_MAX; i++)
        if (!cb_device_passes(&limits->device[i])) return false;
    return true;
}

static inline uint64_t cb_key_mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
    return hash ^ (hash >> 29);
}

/* One device of this container, as the limiter sees it. */
struct cb_device_view {
    const struct cb_limits_device *limits;
    struct cb_usage_device *usage;
    uint64_t *own_inflight_ns; /* this process's counter */
    uint64_t *own_until_ns;
    uint32_t index;
};

struct cb_device_view cb_compute_view(uint32_t device);

/*
 * Processes of this container with work in flight, plus other containers: the card divides its time among so
 * many.
 */
uint32_t cb_compute_sharers(uint32_t device);
uint64_t cb_clock_ns(void);

/* The table of compute_siblings.h, and this process's number in it. */
struct cb_usage_kernel *cb_compute_kernels(void);
uint32_t cb_compute_self(void);

/* Count `launches` of this process; return how many its container has made by now. */
uint64_t cb_compute_launched(uint32_t device, uint64_t launches);

/* Remove work in flight of other processes that should have been done long ago. */
void cb_compute_expire_siblings(uint32_t device, uint64_t now_ns);

/* Count a process that waits at the gate: +1, -1. */
void cb_compute_waiting(uint32_t device, int change);

bool cb_stream_captures(CUstream stream, bool per_thread);

/*
 * While a thread captures in global mode, a query of events would invalidate its capture; relaxed mode allows
 * it.
 */
CUstreamCaptureMode cb_capture_relax(bool *changed);
void cb_capture_restore(bool changed, CUstreamCaptureMode mode);

#endif
