#include "shim/compute_measure.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#define PROBES        16u
#define CLEAN_MAX     255u
#define OUTLIER_RUN   4u /* clean samples far above the mean in a row that make them the new mean */
#define UNCLEAN_RUN   64u
#define LOWER_RUN     6u
#define MINIMUM_RUN   32u
#define EARLY         16u /* samples until an estimate that began among siblings is taken for good */
#define EARLY_RUN     3u
#define SAMPLE_GAP_NS 100000u

#define LOAD(p)     __atomic_load_n((p), __ATOMIC_RELAXED)
#define STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define ADD(p, v)   __atomic_fetch_add((p), (v), __ATOMIC_RELAXED)

struct cb_compute_driver cb_compute_driver;

static struct cb_estimate estimates[CB_ESTIMATES + 1]; /* the last one serves all keys that found no room */
static struct cb_stream streams[CB_STREAMS + 1];
static struct cb_fence fences[CB_FENCES];
static uint8_t
    fence_state[CB_FENCES]; /* enum cb_fence_state, apart from the rest so that a scan touches few lines */
static uint32_t fence_cursor;
static uint32_t pending_count[CB_DEVICES_MAX];
static uint64_t missed_ns[CB_DEVICES_MAX]; /* when a look last found work unfinished */
static uint64_t last_sample_ns;
uint32_t cb_captures;

uint64_t cb_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- tables: open addressing, fixed size, entries are never freed ---- */

static bool claim(uint64_t *slot, uint64_t key)
{
    uint64_t found = LOAD(slot);
    if (found == key) return true;
    if (found != 0) return false;
    return __atomic_compare_exchange_n(slot, &found, key, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ||
           found == key;
}

struct cb_estimate *cb_estimate_find(uint64_t key)
{
    for (uint32_t i = 0; i < PROBES; i++) {
        struct cb_estimate *estimate = &estimates[((key >> 20) + i) % CB_ESTIMATES];
        if (claim(&estimate->key, key)) return estimate;
    }
    return &estimates[CB_ESTIMATES];
}

struct cb_stream *cb_stream_find(CUstream stream, bool per_thread)
{
    uint64_t key = (uint64_t)(uintptr_t)stream;
    if (per_thread && (stream == NULL || stream == CU_STREAM_PER_THREAD)) key = (uint64_t)pthread_self();
    key = cb_key_mix(key, 0x73747265616Dull) | 1;
    for (uint32_t i = 0; i < PROBES; i++) {
        struct cb_stream *entry = &streams[((key >> 20) + i) % CB_STREAMS];
        if (claim(&entry->key, key)) return entry;
    }
    return &streams[CB_STREAMS];
}

void cb_compute_forget_graph(CUgraphExec graph)
{
    cb_advance_book();
    struct cb_estimate *estimate = cb_estimate_find(cb_graph_key(graph));
    STORE(&estimate->mean_ns, 0);
    STORE(&estimate->clean, 0);
}

/* ---- captures ---- */

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

bool cb_stream_captures(CUstream stream, bool per_thread)
{
    if (LOAD(&cb_captures) == 0) return false;
    CUresult(CUDAAPI * ask)(CUstream, CUstreamCaptureStatus *) =
        per_thread && cb_compute_driver.stream_is_capturing_ptsz ? cb_compute_driver.stream_is_capturing_ptsz
                                                                 : cb_compute_driver.stream_is_capturing;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    /* An error here means that the legacy stream is caught in somebody's capture: touch nothing then. */
    return ask == NULL || ask(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* While a thread captures in global mode, asking about events would break its capture; relaxed mode allows
 * it. */
static CUstreamCaptureMode relax(bool *changed)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    *changed = LOAD(&cb_captures) != 0 && cb_compute_driver.thread_exchange_capture_mode != NULL &&
               cb_compute_driver.thread_exchange_capture_mode(&mode) == CUDA_SUCCESS;
    return mode;
}

static void restore(bool changed, CUstreamCaptureMode mode)
{
    if (changed) cb_compute_driver.thread_exchange_capture_mode(&mode);
}

/* ---- work in flight ---- */

static uint64_t drop(uint64_t *counter, uint64_t amount)
{
    uint64_t old = LOAD(counter);
    uint64_t left;
    do {
        left = old > amount ? old - amount : 0;
    } while (!__atomic_compare_exchange_n(counter, &old, left, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old - left;
}

void cb_inflight_drop(uint32_t device, uint64_t amount_ns)
{
    struct cb_device_view view = cb_compute_view(device);
    amount_ns = drop(view.own_inflight_ns, amount_ns);
    drop(&view.usage->inflight_ns, amount_ns);
    if (LOAD(view.own_inflight_ns) == 0) STORE(view.own_until_ns, 0);
}

/* ---- estimates ---- */

bool cb_sample_due(struct cb_estimate *estimate, bool poor, uint64_t now_ns)
{
    uint64_t mean = LOAD(&estimate->mean_ns);
    if (mean == 0) return LOAD(&estimate->pending) < CB_UNKNOWN_PENDING;
    if (mean >= CB_LONG_NS) return true;
    uint32_t clean = LOAD(&estimate->clean);
    uint64_t interval = clean < 4 ? 200000u : clean < 16 ? 2000000u : 10000000u;
    if (poor) interval *= 4;
    if (now_ns - LOAD(&estimate->sampled_ns) < interval) return false;
    return now_ns - LOAD(&last_sample_ns) >= SAMPLE_GAP_NS;
}

/* False: the sample is so far off that it is not believed, unless more of its kind follow. */
static bool learn_clean(struct cb_estimate *estimate, uint64_t mean, uint64_t measured)
{
    uint32_t clean = LOAD(&estimate->clean);
    if (clean > 0 && measured > 4 * mean && ADD(&estimate->outliers, 1) < OUTLIER_RUN) return false;
    uint32_t outliers = LOAD(&estimate->outliers);
    STORE(&estimate->outliers, 0);
    if (clean == 0 || outliers >= OUTLIER_RUN)
        mean = measured;
    else {
        int64_t weight = clean < 8 ? clean + 1 : 8;
        mean = (uint64_t)((int64_t)mean + ((int64_t)measured - (int64_t)mean) / weight);
    }
    STORE(&estimate->mean_ns, mean ? mean : 1);
    STORE(&estimate->clean, clean < CLEAN_MAX ? clean + 1 : CLEAN_MAX);
    STORE(&estimate->unclean, 0);
    STORE(&estimate->run, 0);
    return true;
}

static void learn_unclean(struct cb_estimate *estimate, uint64_t mean, uint64_t measured)
{
    uint32_t unclean = ADD(&estimate->unclean, 1);
    if (mean != 0 && LOAD(&estimate->clean) > 0 && unclean < UNCLEAN_RUN) {
        /* What we know is better than one such sample; but a run of them clearly below it cannot be wrong. */
        if (measured + mean / 10 > mean) {
            STORE(&estimate->run, 0);
            return;
        }
        if (LOAD(&estimate->run) == 0 || measured > LOAD(&estimate->run_ns))
            STORE(&estimate->run_ns, measured);
        if (ADD(&estimate->run, 1) + 1 < LOWER_RUN) return;
        STORE(&estimate->run, 0);
        mean = LOAD(&estimate->run_ns);
    } else if (mean == 0 || measured <= mean) {
        mean = measured;
        STORE(&estimate->run, 0);
    } else { /* the minimum of the last few, so that it can rise again */
        if (LOAD(&estimate->run) == 0 || measured < LOAD(&estimate->run_ns))
            STORE(&estimate->run_ns, measured);
        if (ADD(&estimate->run, 1) + 1 < (unclean < EARLY ? EARLY_RUN : MINIMUM_RUN)) return;
        STORE(&estimate->run, 0);
        mean = LOAD(&estimate->run_ns);
    }
    STORE(&estimate->mean_ns, mean ? mean : 1);
}

/* A launch turned out to be longer or shorter than charged. */
static void correct(const struct cb_fence *fence, uint64_t measured)
{
    struct cb_device_view view = cb_compute_view(fence->device);
    int64_t delta = (int64_t)measured - (int64_t)fence->cost_ns;
    ADD(&view.usage->charged_ns, (uint64_t)delta);
    if (fence->gate == CB_GATE_RATE) ADD(&view.usage->bucket_ns, -delta);
}

/* Whether nobody else had a turn until now, give or take a thirtieth of the kernel. */
static bool still_ours(const struct cb_fence *fence, const struct cb_device_view *view, uint64_t now_ns)
{
    bool unchanged = LOAD(&view->limits->word) == fence->word;
    if (fence->until_ns == UINT64_MAX) return unchanged;
    uint64_t before = now_ns - fence->cost_ns / 32;
    /* A new plan that begins later leaves our turn as it was. */
    return before <= fence->until_ns && (unchanged || before <= LOAD(&view->limits->plan.from_ns));
}

static void evaluate(struct cb_fence *fence, uint64_t now_ns)
{
    struct cb_device_view view = cb_compute_view(fence->device);
    float elapsed_ms = 0.0f;
    if (cb_compute_driver.event_elapsed_time(&elapsed_ms, fence->start, fence->end) != CUDA_SUCCESS ||
        !(elapsed_ms >= 0.0f && elapsed_ms < 1e6f))
        return;
    uint64_t measured = (uint64_t)((double)elapsed_ms * 1e6);
    struct cb_estimate *estimate = fence->estimate;
    uint64_t mean = LOAD(&estimate->mean_ns);
    bool clean = fence->clean && still_ours(fence, &view, now_ns) &&
                 LOAD(&view.usage->launch_count) - LOAD(&fence->entry->launch_count) == fence->others;
    bool first = mean == 0;
    if (first && !clean) { /* without anything better: its part of a card that divided its time among all */
        uint32_t sharers = cb_compute_sharers(fence->device);
        measured /= sharers > fence->sharers ? sharers : fence->sharers;
    }
    if (clean)
        clean = learn_clean(estimate, mean, measured);
    else
        learn_unclean(estimate, mean, measured);
    if (clean || first || measured < fence->cost_ns) correct(fence, measured);
    uint64_t longest = LOAD(&view.usage->kernel_ns_max);
    uint64_t known = LOAD(&estimate->mean_ns), shown = measured < known ? measured : known;
    while (shown > longest && !__atomic_compare_exchange_n(&view.usage->kernel_ns_max, &longest, shown, false,
                                                           __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* ---- fences ---- */

static struct cb_fence *fence_take(uint32_t device)
{
    CUcontext context = NULL;
    if (cb_compute_driver.ctx_get_current(&context) != CUDA_SUCCESS || context == NULL) return NULL;
    for (uint32_t i = 0; i < CB_FENCES; i++) {
        uint32_t at = ADD(&fence_cursor, 1) % CB_FENCES;
        uint8_t expected = CB_FENCE_FREE;
        if (!__atomic_compare_exchange_n(&fence_state[at], &expected, CB_FENCE_FILLING, false,
                                         __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            continue;
        struct cb_fence *fence = &fences[at];
        if (fence->context != context) {
            if (fence->context != NULL) {
                cb_compute_driver.event_destroy(fence->start);
                cb_compute_driver.event_destroy(fence->end);
                fence->context = NULL;
            }
            bool relaxed;
            CUstreamCaptureMode mode = relax(&relaxed);
            bool made = cb_compute_driver.event_create(&fence->start, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
            if (made && cb_compute_driver.event_create(&fence->end, CU_EVENT_DEFAULT) != CUDA_SUCCESS) {
                cb_compute_driver.event_destroy(fence->start);
                made = false;
            }
            restore(relaxed, mode);
            if (!made) {
                cb_fence_drop(fence);
                return NULL;
            }
            fence->context = context;
        }
        fence->device = device;
        fence->estimate = NULL;
        fence->dead = false;
        return fence;
    }
    return NULL;
}

void cb_fence_drop(struct cb_fence *fence)
{
    if (fence->estimate != NULL) __atomic_fetch_sub(&fence->estimate->pending, 1, __ATOMIC_RELAXED);
    fence->estimate = NULL;
    __atomic_store_n(&fence_state[fence - fences], CB_FENCE_FREE, __ATOMIC_RELEASE);
}

static bool record(CUevent event, CUstream stream, bool per_thread)
{
    CUresult(CUDAAPI * function)(CUevent, CUstream) = per_thread && cb_compute_driver.event_record_ptsz
                                                          ? cb_compute_driver.event_record_ptsz
                                                          : cb_compute_driver.event_record;
    return function(event, stream) == CUDA_SUCCESS;
}

struct cb_fence *cb_sample_begin(const struct cb_launch *launch, uint64_t until_ns, uint32_t word,
                                 uint32_t gate)
{
    struct cb_fence *fence = fence_take(launch->device);
    if (fence == NULL) return NULL;
    struct cb_device_view view = cb_compute_view(launch->device);
    fence->estimate = launch->estimate;
    ADD(&launch->estimate->pending, 1);
    fence->cost_ns = launch->cost_ns;
    fence->began_ns = launch->begin_ns;
    fence->until_ns = until_ns;
    fence->word = word;
    fence->gate = gate;
    /* What is in flight now includes this launch, in the container's book and not yet in the stream's. */
    fence->clean = LOAD(&view.usage->inflight_ns) <= LOAD(&launch->entry->inflight_ns) + launch->cost_ns &&
                   until_ns != 0;
    fence->sharers = 1;
    if (LOAD(&launch->estimate->mean_ns) == 0) {
        fence->sharers = cb_compute_sharers(launch->device);
        fence->clean = fence->clean && fence->sharers == 1;
    }
    fence->others = LOAD(&view.usage->launch_count) - LOAD(&launch->entry->launch_count) - 1;
    if (!record(fence->start, launch->stream, launch->per_thread)) {
        cb_fence_drop(fence);
        return NULL;
    }
    STORE(&launch->estimate->sampled_ns, launch->begin_ns);
    STORE(&last_sample_ns, launch->begin_ns);
    return fence;
}

static bool fence_due(const struct cb_launch *launch, const struct cb_device_view *view)
{
    return LOAD(&launch->entry->unfenced_ns) >= CB_FENCE_NS ||
           LOAD(&launch->entry->unfenced_count) >= CB_FENCE_LAUNCHES ||
           LOAD(&view->usage->inflight_ns) > CB_INFLIGHT_NS_MAX / 2;
}

void cb_fence_end(const struct cb_launch *launch)
{
    struct cb_device_view view = cb_compute_view(launch->device);
    struct cb_fence *fence = launch->fence;
    if (fence == NULL) {
        if (!fence_due(launch, &view)) return;
        fence = fence_take(launch->device);
        if (fence == NULL) return;
    } else if (launch->cost_ns < CB_LONG_NS &&
               cb_compute_driver.event_query(fence->start) != CUDA_ERROR_NOT_READY) {
        fence->clean = false; /* the card waited for our second call: the sample holds that pause too */
    }
    if (!record(fence->end, launch->stream, launch->per_thread)) {
        cb_fence_drop(fence);
        return;
    }
    fence->entry = launch->entry;
    fence->amount_ns = __atomic_exchange_n(&launch->entry->unfenced_ns, 0, __ATOMIC_RELAXED);
    STORE(&launch->entry->unfenced_count, 0);
    ADD(&view.usage->charged_ns, fence->amount_ns);
    fence->expected_ns = LOAD(view.own_until_ns);
    ADD(&pending_count[launch->device], 1);
    __atomic_store_n(&fence_state[fence - fences], CB_FENCE_PENDING, __ATOMIC_RELEASE);
    cb_fences_poll(launch->device, 1);
}

/*
 * The clock runs ahead of a card that also serves others. When work completes, what is queued behind it has
 * all its time before it: since now, if the work was long and somebody waited for it, else at least since the
 * last look that found it unfinished.
 */
static void resynchronise(const struct cb_fence *fence, uint64_t now_ns)
{
    struct cb_device_view view = cb_compute_view(fence->device);
    uint64_t left = LOAD(view.own_inflight_ns), since = LOAD(&missed_ns[fence->device]);
    if (left == 0) return;
    uint64_t expected = fence->expected_ns < now_ns ? fence->expected_ns : now_ns;
    if (expected > since) since = expected;
    if (fence->amount_ns >= CB_OVERLAP_NS) since = now_ns;
    uint64_t until = LOAD(&view.usage->busy_until_ns);
    while (since + left > until &&
           !__atomic_compare_exchange_n(&view.usage->busy_until_ns, &until, since + left, false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

static void complete(struct cb_fence *fence, bool measured, uint64_t now_ns)
{
    if (measured && fence->estimate != NULL) evaluate(fence, now_ns);
    drop(&fence->entry->inflight_ns, fence->amount_ns);
    cb_inflight_drop(fence->device, fence->amount_ns);
    if (measured) resynchronise(fence, now_ns);
    __atomic_fetch_sub(&pending_count[fence->device], 1, __ATOMIC_RELAXED);
    cb_fence_drop(fence);
}

bool cb_fences_poll(uint32_t device, unsigned misses)
{
    if (LOAD(&pending_count[device]) == 0) return false;
    bool any = false, relaxed;
    CUstreamCaptureMode mode = relax(&relaxed);
    uint32_t cursor = LOAD(&fence_cursor);
    for (uint32_t i = 0; i < CB_FENCES && misses > 0 && LOAD(&pending_count[device]) > 0; i++) {
        uint32_t at = (cursor + i) % CB_FENCES;
        uint8_t expected = CB_FENCE_PENDING;
        if (LOAD(&fence_state[at]) != CB_FENCE_PENDING || fences[at].device != device) continue;
        if (!__atomic_compare_exchange_n(&fence_state[at], &expected, CB_FENCE_POLLING, false,
                                         __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            continue;
        CUresult result =
            fences[at].dead ? CUDA_ERROR_CONTEXT_IS_DESTROYED : cb_compute_driver.event_query(fences[at].end);
        if (result == CUDA_ERROR_NOT_READY) {
            misses--;
            STORE(&missed_ns[device], cb_clock_ns());
            __atomic_store_n(&fence_state[at], CB_FENCE_PENDING, __ATOMIC_RELEASE);
            continue;
        }
        complete(&fences[at], result == CUDA_SUCCESS, cb_clock_ns());
        any = true;
    }
    restore(relaxed, mode);
    return any;
}

uint64_t cb_fences_expected(uint32_t device)
{
    uint64_t first = 0;
    if (LOAD(&pending_count[device]) == 0) return 0;
    for (uint32_t at = 0; at < CB_FENCES; at++) {
        if (LOAD(&fence_state[at]) != CB_FENCE_PENDING || fences[at].device != device) continue;
        uint64_t expected = LOAD(&fences[at].expected_ns);
        if (first == 0 || expected < first) first = expected;
    }
    return first;
}

/* ---- news from the hooks ---- */

void cb_compute_forget_context(CUcontext context)
{
    cb_advance_book();
    for (uint32_t at = 0; at < CB_FENCES; at++) {
        struct cb_fence *fence = &fences[at];
        uint8_t expected = CB_FENCE_FREE;
        if (fence->context != context) continue;
        if (__atomic_compare_exchange_n(&fence_state[at], &expected, CB_FENCE_FILLING, false,
                                        __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
            fence->context = NULL;
            __atomic_store_n(&fence_state[at], CB_FENCE_FREE, __ATOMIC_RELEASE);
            continue;
        }
        expected = CB_FENCE_PENDING;
        if (__atomic_compare_exchange_n(&fence_state[at], &expected, CB_FENCE_POLLING, false,
                                        __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
            fence->context = NULL;
            complete(fence, false, 0);
        }
    }
}

static void flush(struct cb_stream *entry, uint64_t before_ns)
{
    if (LOAD(&entry->key) == 0 || LOAD(&entry->last_ns) >= before_ns) return;
    uint64_t amount = __atomic_exchange_n(&entry->unfenced_ns, 0, __ATOMIC_RELAXED);
    STORE(&entry->unfenced_count, 0);
    if (amount == 0) return;
    ADD(&cb_compute_view(entry->device).usage->charged_ns, amount);
    drop(&entry->inflight_ns, amount);
    cb_inflight_drop(entry->device, amount);
}

uint64_t cb_compute_mark(void)
{
    if (cb_compute_passes()) return 0;
    cb_advance_book(); /* what is launched after the mark is not known to be done after the wait */
    return cb_clock_ns();
}

void cb_compute_synchronized(uint64_t mark, CUstream stream, bool per_thread, bool all)
{
    if (mark == 0) return;
    for (uint32_t device = 0; device < CB_DEVICES_MAX; device++)
        while (cb_fences_poll(device, 1))
            ;
    if (all) {
        for (uint32_t i = 0; i <= CB_STREAMS; i++)
            flush(&streams[i], mark);
    } else {
        flush(cb_stream_find(stream, per_thread), mark);
    }
}

void cb_compute_forget_stream(CUstream stream)
{
    cb_advance_book();
    flush(cb_stream_find(stream, false), UINT64_MAX);
}

/* Launches without a fence behind them, of streams that fell silent: by now they are done. */
void cb_measure_age(uint64_t now_ns, uint64_t age_ns)
{
    for (uint32_t i = 0; i <= CB_STREAMS; i++)
        flush(&streams[i], now_ns - age_ns);
}

void cb_measure_reset(void)
{
    memset(estimates, 0, sizeof(estimates));
    memset(streams, 0, sizeof(streams));
    memset(fences, 0, sizeof(fences));
    memset(fence_state, 0, sizeof(fence_state));
    memset(pending_count, 0, sizeof(pending_count));
    cb_captures = 0;
}
