/* Entry of launches into the compute limiter, and the other events that the hooks report to it. */
#define _GNU_SOURCE
#include "shim/compute.h"

#include "shim/compute_estimate.h"
#include "shim/compute_gate.h"
#include "shim/compute_inflight.h"
#include "shim/compute_siblings.h"
#include "shim/compute_words.h"
#include "shim/elf.h"
#include "shim/spin.h"

#include <stddef.h>
#include <string.h>

void cb_compute_init(const struct cb_limits *limits, struct cb_usage *usage, struct cb_usage_proc *proc,
                     const struct cb_compute_driver *driver)
{
    cb_limiter_init(limits, usage, proc, driver);
}

void cb_compute_after_fork(struct cb_usage_proc *proc)
{
    cb_limiter_after_fork(proc);
    memset(&cb_advance, 0, sizeof(cb_advance)); /* the parent accounts for its own launches */
    cb_estimates_reset();
    cb_streams_reset();
    cb_fences_reset();
}

/*
 * Account for launches of `cost_ns` together as in flight; *until_ns receives the time at which the card is
 * expected to have finished them.
 */
static uint64_t inflight_add(const struct cb_device_view *view, uint64_t cost_ns, uint64_t launches,
                             uint64_t now_ns, uint64_t *until_ns)
{
    ADD(view->own_inflight_ns, cost_ns);
    uint64_t inflight = ADD(&view->usage->inflight_ns, cost_ns); /* without these launches */
    uint64_t count = cb_compute_launched(view->index, launches);
    uint64_t until = LOAD(&view->usage->busy_until_ns), next;
    do {
        uint64_t ahead = until > now_ns ? until - now_ns : 0;
        next = now_ns + (ahead < inflight ? ahead : inflight) + cost_ns;
    } while (!__atomic_compare_exchange_n(&view->usage->busy_until_ns, &until, next, false, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    STORE(view->own_until_ns, next);
    *until_ns = until;
    return count;
}

/*
 * Launches in advance. A check of the gate costs several atomic operations on shared lines and a reading of the
 * clock, far more than the launch of a small kernel can bear. Therefore a thread that launches quickly, and is
 * the only one of its container that does, is granted its next few launches by one check: as many as it is
 * expected to make within half a millisecond, of at most CB_ADVANCE_NS of GPU time, taken from the bucket
 * beforehand if there is one. They are accounted for together at its next check, wait or end. The grant ends
 * when the agent changes the order under which it was made, with the agent's next heartbeat, with a capture,
 * and with a change of stream. Under time windows, and for kernels that were never measured, every launch is
 * checked. A process that is killed leaves at most CB_ADVANCE_NS of each of its threads unaccounted.
 */
#define CB_ADVANCE_NS       100000u
#define CB_ADVANCE_LAUNCHES 32u
#define CB_ADVANCE_SPAN_NS  500000u

__thread struct cb_advance cb_advance;

static void advance_account(void)
{
    struct cb_advance *advance = &cb_advance;
    uint32_t launches = advance->launches - advance->launches_left;
    uint64_t ns = advance->ns - advance->ns_left, until;
    if (advance->launches == 0) return;
    struct cb_device_view view = cb_compute_view(0);
    if (advance->taken_ns > ns) ADD(&view.usage->bucket_ns, (int64_t)(advance->taken_ns - ns));
    advance->launches = advance->launches_left = 0;
    advance->ns = advance->ns_left = advance->taken_ns = 0;
    if (launches == 0) return;
    cb_stream_book(advance->entry, ns, launches, advance->since_ns);
    STORE(&advance->entry->sampled, 0);
    advance->seen_count += launches;
    (void)inflight_add(&view, ns, launches, advance->since_ns, &until);
}

static void advance_thread_end(void *unused)
{
    (void)unused;
    advance_account();
}

/*
 * Register at_thread_end() for this thread. The functions are looked up at run time because they have moved
 * from one library to another, with new versions; without them the last few launches of a thread are not
 * accounted for.
 */
static void advance_register_thread_end(void)
{
    static int (*set_specific)(unsigned, const void *);
    static unsigned end_key;
    static cb_spin making;
    static bool made;
    static __thread bool registered;
    if (registered) return;
    registered = true;
    cb_lock(&making);
    if (!made) {
        int (*create)(unsigned *, void (*)(void *)) =
            (int (*)(unsigned *, void (*)(void *)))cb_libc_symbol("pthread_key_create");
        set_specific = (int (*)(unsigned, const void *))cb_libc_symbol("pthread_setspecific");
        if (create == NULL || create(&end_key, advance_thread_end) != 0) set_specific = NULL;
        made = true;
    }
    cb_unlock(&making);
    if (set_specific != NULL) (void)set_specific(end_key, &cb_advance);
}

/* Called after a check that let a launch pass at once. */
static void advance_grant(const struct cb_device_view *view, const struct cb_launch *launch,
                          const struct cb_look *look, uint64_t count, uint64_t key)
{
    struct cb_advance *advance = &cb_advance;
    bool alone = count == advance->seen_count + 1;
    uint64_t passed = launch->begin_ns - advance->last_ns;
    advance->seen_count = count;
    advance->last_ns = launch->begin_ns;
    advance->known[(key >> 20) % CB_ADVANCE_KEYS].key = key;
    advance->known[(key >> 20) % CB_ADVANCE_KEYS].mean_ns = &launch->estimate->mean_ns;
    if (!alone || passed > CB_ADVANCE_SPAN_NS) {
        advance->appetite = 1;
        return;
    }
    if (advance->appetite < CB_ADVANCE_LAUNCHES) advance->appetite = 2 * advance->appetite + 1;
    /* The number varies, so that every kernel of a loop is checked, and measured, now and then. */
    uint32_t launches = advance->appetite - (uint32_t)(count & 3u) % advance->appetite;
    uint64_t ns = CB_ADVANCE_NS;
    if (look->order.gate == CB_GATE_TURN || look->inflight_ns > CB_INFLIGHT_NS / 2 ||
        LOAD(&launch->estimate->mean_ns) == 0)
        return;
    if (look->order.gate == CB_GATE_RATE && look->order.core_percent < 100) {
        int64_t bucket = LOAD(&view->usage->bucket_ns);
        if (bucket < 8 * (int64_t)CB_ADVANCE_NS) return; /* about to be throttled */
        if (!cb_bucket_take(view->usage, ns)) return;
        advance->taken_ns = ns;
    }
    advance->ns = advance->ns_left = ns;
    advance->since_ns = launch->begin_ns;
    advance->entry = launch->entry;
    advance->stream = cb_advance_stream(launch->stream, launch->per_thread);
    advance->word = look->order.word;
    advance->heartbeat_ns = look->heartbeat_ns;
    advance->launches = advance->launches_left = launches;
    advance_register_thread_end();
}

/*
 * Time until which a sample that starts now is certain to measure this container's work only; 0: not certain.
 */
static uint64_t exclusive_until_ns(const struct cb_look *look, uint64_t cost_ns, uint64_t now_ns)
{
    if (look->order.gate == CB_GATE_TURN)
        return now_ns > look->window.start + CB_POLL_MIN_NS || cost_ns >= CB_OVERLAP_NS ? look->window.end
                                                                                        : 0;
    return look->order.neighbours == 0 ? UINT64_MAX : 0;
}

void cb_launch_begin_tracked(struct cb_launch *launch, uint64_t key, CUstream stream, bool per_thread)
{
    int device = 0;
    if (cb_compute_limits->device_count > 1) device = cb_compute_driver.current_device();
    if (device < 0 || device >= (int)CB_DEVICES_MAX || cb_device_passes(&cb_compute_limits->device[device]))
        return;
    if (cb_stream_captures(stream, per_thread)) return;

    advance_account();
    struct cb_device_view view = cb_compute_view((uint32_t)device);
    uint64_t now = cb_clock_ns();
    launch->device = (uint32_t)device;
    launch->stream = stream;
    launch->per_thread = per_thread;
    launch->estimate = cb_estimate_find(key);
    launch->entry = cb_stream_find(stream, per_thread);
    launch->fence = NULL;
    uint64_t mean = LOAD(&launch->estimate->mean_ns);
    launch->cost_ns = cb_launch_cost(&view, launch);
    STORE(&view.usage->demand_ns, now);

    struct cb_look look;
    if (mean >= CB_LONG_NS && LOAD(view.own_inflight_ns) > 0) cb_fences_poll((uint32_t)device, 1);
    enum cb_verdict verdict = cb_gate_look(&view, launch, false, false, now, &look);
    if (__builtin_expect(verdict == CB_WAIT_INFLIGHT, 0) && cb_fences_poll((uint32_t)device, 2))
        verdict = cb_gate_look(&view, launch, false, false, now, &look);
    if (__builtin_expect(verdict != CB_PASS, 0)) {
        cb_gate_wait(&view, launch, &look, verdict);
        now = cb_clock_ns();
    }
    launch->begin_ns = now;
    launch->tracked =
        look.order.gate == CB_GATE_RATE && look.order.core_percent < 100 ? CB_TRACKED_RATE : CB_TRACKED;
    uint64_t until, count = inflight_add(&view, launch->cost_ns, 1, now, &until);
    uint64_t ours_until = exclusive_until_ns(&look, launch->cost_ns, now);
    bool beside = mean >= CB_BESIDE_NS && cb_is_beside(&view, launch->entry, launch->cost_ns);
    if (beside || cb_sample_due(launch->estimate, until <= now || ours_until == 0, now))
        launch->fence = cb_sample_begin(launch, ours_until, look.order.word);
    if (verdict == CB_PASS && cb_compute_limits->device_count == 1)
        advance_grant(&view, launch, &look, count, key);
}

void cb_launch_end_tracked(struct cb_launch *launch, CUresult result)
{
    if (launch->tracked == CB_TRACKED_ADVANCE) { /* the launch failed */
        if (cb_advance.launches != 0) cb_advance.ns_left += launch->cost_ns;
        return;
    }
    struct cb_device_view view = cb_compute_view(launch->device);
    if (__builtin_expect(result != CUDA_SUCCESS, 0)) {
        if (launch->fence != NULL) cb_fence_drop(launch->fence);
        cb_inflight_drop(launch->device, launch->cost_ns);
        ADD(&view.usage->launch_count, (uint64_t)-1);
        if (launch->tracked == CB_TRACKED_RATE) ADD(&view.usage->bucket_ns, (int64_t)launch->cost_ns);
        return;
    }
    struct cb_stream *entry = launch->entry;
    STORE(&entry->last_ns, launch->begin_ns);
    STORE(&entry->device, (uint16_t)launch->device);
    STORE(&entry->sampled, launch->fence != NULL);
    cb_stream_book(entry, launch->cost_ns, 1, launch->begin_ns);
    cb_fence_end(launch);
}

/* ---- events reported by the hooks ---- */

void cb_compute_capture_begun(void)
{
    ADD(&cb_captures, 1);
}

void cb_compute_capture_ended(void)
{
    uint32_t count = LOAD(&cb_captures);
    while (count > 0 && !__atomic_compare_exchange_n(&cb_captures, &count, count - 1, false, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED))
        ;
}

uint64_t cb_compute_mark(void)
{
    if (cb_compute_passes()) return 0;
    advance_account(); /* what is launched after the mark is not known to be done after the wait */
    return cb_clock_ns();
}

void cb_compute_synchronized(uint64_t mark, CUstream stream, bool per_thread, bool all)
{
    if (mark == 0) return;
    for (uint32_t device = 0; device < CB_DEVICES_MAX; device++)
        while (cb_fences_poll(device, 1))
            ;
    if (all) {
        cb_streams_flush(mark);
    } else {
        cb_stream_flush(cb_stream_find(stream, per_thread), mark);
    }
}

void cb_compute_forget_stream(CUstream stream)
{
    advance_account();
    cb_stream_flush(cb_stream_find(stream, false), UINT64_MAX);
}

void cb_compute_forget_graph(CUgraphExec graph)
{
    advance_account();
    cb_estimate_forget(cb_graph_key(graph));
}

void cb_compute_forget_context(CUcontext context)
{
    advance_account();
    cb_fences_forget(context);
}
