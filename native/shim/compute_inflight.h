/* Work in flight, by stream, by process and in the whole container. */
#ifndef CALABASH_SHIM_COMPUTE_INFLIGHT_H
#define CALABASH_SHIM_COMPUTE_INFLIGHT_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "shim/compute_limiter.h"

struct cb_stream {
    uint64_t key; /* 0: free */
    uint64_t unfenced_ns;
    uint64_t inflight_ns; /* fenced and not fenced */
    uint64_t launch_count;
    uint64_t last_ns;
    uint64_t first_ns; /* when the first launch without a fence was made */
    uint64_t end_ns;   /* when the last sample in it was done, by the clock of the host; 0: not known */
    uint32_t unfenced_count;
    uint16_t device;  /* of its last launch */
    uint16_t sampled; /* that was a sample */
};

struct cb_stream *cb_stream_find(CUstream stream, bool per_thread);

/* Account for launches of one stream, together, the first of them at `begin_ns`. */
void cb_stream_book(struct cb_stream *entry, uint64_t cost_ns, uint64_t launches, uint64_t begin_ns);

/*
 * Return true if other streams of this process have work; `booked_ns` is counted for the process and not for
 * the stream.
 */
bool cb_is_beside(const struct cb_device_view *view, const struct cb_stream *entry, uint64_t booked_ns);

/* Remove work without a fence from the counters of a stream that has been silent since `before_ns`. */
void cb_stream_flush(struct cb_stream *entry, uint64_t before_ns);
void cb_streams_flush(uint64_t before_ns);

/* Remove fenced work of a stream from all counters. */
void cb_stream_drop(struct cb_stream *entry, uint32_t device, uint64_t amount_ns);

/* Remove up to `amount_ns` from the counters of this process and its container. */
void cb_inflight_drop(uint32_t device, uint64_t amount_ns);

void cb_streams_reset(void);

#endif
