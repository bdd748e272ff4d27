/*
 * Interface of the compute limiter, which enforces the compute share inside the tenant's process.
 *
 * Every launch passes cb_launch_begin() before the driver is called and cb_launch_end() after. Together they
 * charge *measured* GPU time to the container (events around some launches, an estimate by function and shape
 * for the rest), keep little work in flight, and let a launch wait until the share allows it. How the share is
 * enforced at present (enum cb_gate) is the agent's decision, read from the limits page; a launch that may pass
 * never waits for the agent, the driver or the GPU.
 *
 *     CUresult hook_cuLaunchKernel(CUfunction function, unsigned gx, ...)
 *     {
 *         struct cb_launch launch;
 *         cb_launch_begin(&launch, cb_kernel_key(function, gx, gy, gz, bx, by, bz), stream, false);
 *         CUresult result = real_cuLaunchKernel(function, gx, ...);
 *         cb_launch_end(&launch, result);
 *         return result;
 *     }
 *
 * All functions may be called from any thread. No lock is taken anywhere.
 */
#ifndef CALABASH_SHIM_COMPUTE_H
#define CALABASH_SHIM_COMPUTE_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "page/page.h"
#include "shim/compute_fence.h"
#include "shim/compute_limiter.h"

/*
 * Start limiting. `limits`, `usage` and `proc` (this process's entry in `usage`) stay mapped for the life of
 * the process. Call once, before the first launch; until then every launch passes.
 */
void cb_compute_init(const struct cb_limits *limits, struct cb_usage *usage, struct cb_usage_proc *proc,
                     const struct cb_compute_driver *driver);

/* In a forked child: discard the parent's launches and events. `proc` is the child's own entry. */
void cb_compute_after_fork(struct cb_usage_proc *proc);

/*
 * Launches that a thread may make without a further check of the gate: a few launches of known kernels into one
 * stream, accounted for together afterwards. Granted by cb_launch_begin_tracked().
 */
#define CB_ADVANCE_KEYS 16u
struct cb_advance {
    uint32_t launches_left; /* 0: none */
    uint32_t word;          /* limits.device[0].word when it was granted: it ends when the word changes */
    /* limits.heartbeat_ns when it was granted: it ends with the agent's next heartbeat */
    uint64_t heartbeat_ns;
    uint64_t stream;
    uint64_t ns_left;
    struct {
        uint64_t key;
        const uint64_t *mean_ns;
    } known[CB_ADVANCE_KEYS];
    uint32_t launches; /* launches granted */
    uint64_t ns;       /* GPU time granted */
    uint64_t taken_ns; /* taken from the bucket */
    uint64_t since_ns; /* when it was granted */
    struct cb_stream *entry;
    uint64_t seen_count; /* launches of the whole container when this thread last checked the gate */
    uint64_t last_ns;    /* when this thread last checked the gate */
    uint32_t appetite;   /* launches to grant next */
};
extern __thread struct cb_advance cb_advance __attribute__((visibility("hidden"), tls_model("initial-exec")));

/* private to the inline functions below */
void cb_launch_begin_tracked(struct cb_launch *launch, uint64_t key, CUstream stream, bool per_thread)
    __attribute__((visibility("hidden")));
void cb_launch_end_tracked(struct cb_launch *launch, CUresult result) __attribute__((visibility("hidden")));

static inline uint64_t cb_advance_stream(CUstream stream, bool per_thread)
{
    return (uint64_t)(uintptr_t)stream << 1 | per_thread;
}

/* Return true if this launch is covered by the grant of its thread. */
static inline bool cb_launch_in_advance(struct cb_launch *launch, uint64_t key, CUstream stream,
                                        bool per_thread)
{
    struct cb_advance *advance = &cb_advance;
    const struct cb_limits *limits = cb_compute_limits;
    uint32_t at = (uint32_t)(key >> 20) % CB_ADVANCE_KEYS;
    if (advance->known[at].key != key || advance->stream != cb_advance_stream(stream, per_thread) ||
        advance->word != __atomic_load_n(&limits->device[0].word, __ATOMIC_RELAXED) ||
        advance->heartbeat_ns != __atomic_load_n(&limits->heartbeat_ns, __ATOMIC_RELAXED) ||
        __atomic_load_n(&cb_captures, __ATOMIC_RELAXED) != 0)
        return false;
    uint64_t cost = __atomic_load_n(advance->known[at].mean_ns, __ATOMIC_RELAXED);
    if (cost == 0 || cost > advance->ns_left) return false;
    advance->ns_left -= cost;
    advance->launches_left--;
    launch->tracked = CB_TRACKED_ADVANCE;
    launch->cost_ns = cost;
    return true;
}

/*
 * Called before a kernel or a graph is launched; may sleep until the share allows it. `per_thread`: the entry
 * point is a _ptsz variant, or the stream is CU_STREAM_PER_THREAD. The current context must be the one of the
 * launch. Pass the stream as the program gave it.
 */
static inline void cb_launch_begin(struct cb_launch *launch, uint64_t key, CUstream stream, bool per_thread)
{
    launch->tracked = CB_UNTRACKED;
    if (cb_advance.launches_left != 0 && cb_launch_in_advance(launch, key, stream, per_thread)) return;
    if (__builtin_expect(!cb_compute_passes(), 0)) cb_launch_begin_tracked(launch, key, stream, per_thread);
}

/* Called after the driver has answered. The charge of a launch that failed is returned. */
static inline void cb_launch_end(struct cb_launch *launch, CUresult result)
{
    if (launch->tracked == CB_UNTRACKED ||
        __builtin_expect(launch->tracked == CB_TRACKED_ADVANCE && result == CUDA_SUCCESS, 1))
        return;
    cb_launch_end_tracked(launch, result);
}

/*
 * Identity under which launches are expected to take the same time. `function` may be a CUkernel. The upper
 * half is the shape alone, which is the same in every process; 0 for a graph.
 */
static inline uint64_t cb_kernel_key(const void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                     unsigned by, unsigned bz)
{
    uint64_t grid = (uint64_t)gx << 32 | gy;
    uint64_t block = (uint64_t)gz << 40 | (uint64_t)bx << 26 | (uint64_t)by << 13 | bz;
    uint64_t hash = cb_key_mix(cb_key_mix((uint64_t)(uintptr_t)function, grid), block);
    uint64_t shape = grid ^ block << 9;
    return ((shape ^ shape << 32) & ~0xffffffffull) | 1ull << 32 | hash >> 32 | 1;
}

static inline uint64_t cb_graph_key(CUgraphExec graph)
{
    return cb_key_mix((uint64_t)(uintptr_t)graph, 0x6772617068ull) >> 32 | 1;
}

/*
 * Events other than launches that must be reported to the limiter:
 *
 *   - a successful begin (all variants of cuStreamBeginCapture, cuStreamBeginCaptureToGraph) and end of a
 *   capture; while any capture is under way, launches ask the driver whether their stream is capturing, and
 *   pass if it is;
 *
 *   - a successful cuCtxSynchronize, cuStreamSynchronize, cuEventSynchronize (`stream` unknown: all = true
 *   only for the context form): finished work is then removed from the counters at once. Take the mark before
 *   the wait;
 *
 *   - a stream (before cuStreamDestroy) or a graph (before cuGraphExecDestroy, after cuGraphExecUpdate or a
 *   change of its nodes' parameters) whose handle will mean something else;
 *
 *   - a context, before it is destroyed, reset or released for the last time: its events are destroyed with
 *   it.
 */
void cb_compute_capture_begun(void);
void cb_compute_capture_ended(void);
uint64_t cb_compute_mark(void);
void cb_compute_synchronized(uint64_t mark, CUstream stream, bool per_thread, bool all);
void cb_compute_forget_stream(CUstream stream);
void cb_compute_forget_graph(CUgraphExec graph);
void cb_compute_forget_context(CUcontext context);

#endif
