/* Fences and samples; compute_fence.h has the theory. */
#include "shim/compute_fence.h"

#include "shim/compute_estimate.h"
#include "shim/compute_inflight.h"
#include "shim/compute_limiter.h"
#include "shim/compute_siblings.h"
#include "shim/compute_words.h"

#include <stddef.h>
#include <string.h>

#define CB_FENCES 256u
#define CB_RUNNING_NS \
    20000000u /* interval at which a kernel that was never measured is charged while it runs */

static struct cb_fence fences[CB_FENCES];
/* enum cb_fence_state, stored separately so that a scan touches few lines */
static uint8_t fence_state[CB_FENCES];
static uint32_t fence_cursor;
static uint32_t pending_count[CB_DEVICES_MAX];
static uint64_t missed_ns[CB_DEVICES_MAX]; /* when a poll last found work unfinished */

static uint64_t u64_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t u64_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Share of the measured time that kernels of this process used exclusively while several streams had work. */
#define PART_ONE 1024u
#define PARTS    8u
static uint32_t beside_part[CB_DEVICES_MAX]; /* 0: not known */

static void beside_part_learn(uint32_t device, uint64_t used_ns, uint64_t measured_ns)
{
    if (measured_ns == 0) return;
    uint32_t part = (uint32_t)(used_ns >= measured_ns ? PART_ONE : used_ns * PART_ONE / measured_ns);
    uint32_t known = LOAD(&beside_part[device]);
    if (known == 0) known = PART_ONE;
    known = known - known / PARTS + part / PARTS;
    STORE(&beside_part[device], known > PART_ONE ? PART_ONE : known > 0 ? known : 1);
}

uint64_t cb_launch_cost(const struct cb_device_view *view, const struct cb_launch *launch)
{
    uint64_t mean = LOAD(&launch->estimate->mean_ns);
    if (mean == 0) return cb_siblings_cost(launch->device, launch->estimate->key);
    uint32_t part = LOAD(&beside_part[launch->device]);
    if (part == 0 || !cb_is_beside(view, launch->entry, 0)) return mean;
    mean = mean * part / PART_ONE;
    return mean > 0 ? mean : 1;
}

/* Correct the charge of launches that were longer or shorter than charged. */
static void charge_correct(const struct cb_fence *fence, uint64_t used_ns, uint64_t charged_ns)
{
    struct cb_device_view view = cb_compute_view(fence->device);
    int64_t delta = (int64_t)used_ns - (int64_t)charged_ns;
    ADD(&view.usage->charged_ns, (uint64_t)delta);
    if (fence->gate == CB_GATE_RATE) ADD(&view.usage->bucket_ns, -delta);
}

/*
 * Card time of work that was sent at `begin_ns`, was done at `end_ns`, and would have taken up to `most_ns`
 * alone: no more than the time of which nothing has been charged yet. Kernels that ran side by side are thus
 * charged what they used together, and what one of them was charged too much the next one is charged less.
 */
static uint64_t card_time_charge(const struct cb_device_view *view, uint64_t begin_ns, uint64_t end_ns,
                                 uint64_t most_ns)
{
    uint64_t settled = LOAD(&view->usage->settled_ns), from, used;
    do {
        from = settled > begin_ns ? settled : begin_ns;
        used = end_ns > from ? end_ns - from : 0;
        if (used > most_ns) used = most_ns;
    } while (!__atomic_compare_exchange_n(&view->usage->settled_ns, &settled, from + used, false,
                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return used;
}

/*
 * Return true if no other container had a time window until now, with a tolerance of a thirtieth of the kernel.
 */
static bool fence_was_exclusive(const struct cb_fence *fence, const struct cb_device_view *view,
                                uint64_t now_ns)
{
    bool unchanged = LOAD(&view->limits->word) == fence->word;
    if (fence->until_ns == 0) return false;
    if (fence->until_ns == UINT64_MAX) return unchanged;
    uint64_t before = now_ns - fence->cost_ns / 32;
    /* A new plan that begins later leaves the current window as it was. */
    return before <= fence->until_ns && (unchanged || before <= LOAD(&view->limits->plan.from_ns));
}

/*
 * Estimate from the first sample of a kernel on a card that other processes used, too: what processes of the
 * container measured, if plausible, else its part of a card that divided its time equally.
 */
static uint64_t first_shared_estimate(const struct cb_fence *fence, uint64_t measured, bool *believed)
{
    uint32_t sharers = cb_compute_sharers(fence->device);
    uint64_t guess = cb_siblings_guess(fence->device, fence->estimate->key);
    uint64_t part = measured / (sharers > fence->sharers ? sharers : fence->sharers);
    *believed = guess != 0 && guess <= measured + measured / 8 && guess >= part / 8;
    if (!*believed) return part;
    return guess < measured ? guess : measured;
}

/*
 * A kernel that was never measured was charged next to nothing, and may run for seconds. While it runs it is
 * charged its part of the time that passes; the difference is corrected when it is done.
 */
static void charge_running(struct cb_fence *fence, uint64_t now_ns)
{
    if (fence->estimate == NULL || LOAD(&fence->estimate->mean_ns) != 0) return;
    if (fence->running_ns == 0) {
        if (now_ns < fence->began_ns + CB_RUNNING_NS) return;
        if (!fence->fresh && cb_compute_driver.event_query(fence->start) != CUDA_SUCCESS) return;
        fence->running_ns = fence->fresh ? fence->began_ns : now_ns;
    }
    uint64_t passed = now_ns - fence->running_ns;
    if (passed < CB_RUNNING_NS) return;
    fence->running_ns = now_ns;
    uint64_t part = passed / cb_compute_sharers(fence->device);
    charge_correct(fence, part, 0);
    fence->told_ns += part;
}

static void kernel_time_publish(const struct cb_device_view *view, uint64_t kernel_ns)
{
    uint64_t longest = LOAD(&view->usage->kernel_ns_max);
    while (kernel_ns > longest &&
           !__atomic_compare_exchange_n(&view->usage->kernel_ns_max, &longest, kernel_ns, false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

static void sample_evaluate(struct cb_fence *fence, uint64_t now_ns)
{
    struct cb_device_view view = cb_compute_view(fence->device);
    float elapsed_ms = 0.0f;
    if (cb_compute_driver.event_elapsed_time(&elapsed_ms, fence->start, fence->end) != CUDA_SUCCESS ||
        !(elapsed_ms >= 0.0f && elapsed_ms < 1e6f))
        return;
    uint64_t measured = (uint64_t)((double)elapsed_ms * 1e6), most = measured;
    struct cb_estimate *estimate = fence->estimate;
    uint64_t mean = LOAD(&estimate->mean_ns), end = now_ns;
    bool ours = fence_was_exclusive(fence, &view, now_ns), first = mean == 0, believed = false,
         learnt = false;
    bool alone = ours && fence->clean &&
                 LOAD(&view.usage->launch_count) - LOAD(&fence->entry->launch_count) == fence->others;
    if (first && !alone)
        most = first_shared_estimate(fence, measured, &believed);
    else if (!ours || measured < CB_LONG_NS) /* lengthened by other containers, or by this process */
        most = u64_min(measured, u64_max(fence->cost_ns, mean));
    uint64_t before = LOAD(&fence->entry->end_ns), start = fence->began_ns;
    if (!fence->fresh) start = fence->chained && before != 0 ? u64_max(start, before) : now_ns;
    if (start + measured < end) end = start + measured;
    STORE(&fence->entry->end_ns, end);
    uint64_t used = card_time_charge(&view, fence->began_ns, end, most);
    if (fence->beside && ours && !first) beside_part_learn(fence->device, used, measured);
    if (alone)
        learnt = cb_estimate_learn_clean(estimate, mean, measured);
    else if (believed)
        cb_estimate_believe(estimate, most);
    else
        cb_estimate_learn_unclean(estimate, mean, first ? most : measured);
    if (first || learnt || measured < mean)
        cb_siblings_tell(fence->device, estimate->key, LOAD(&estimate->mean_ns), learnt);
    charge_correct(fence, alone ? measured : used, fence->cost_ns + fence->told_ns);
    mean = LOAD(&estimate->mean_ns);
    kernel_time_publish(&view, measured < mean ? measured : mean);
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
            CUstreamCaptureMode mode = cb_capture_relax(&relaxed);
            bool made = cb_compute_driver.event_create(&fence->start, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
            if (made && cb_compute_driver.event_create(&fence->end, CU_EVENT_DEFAULT) != CUDA_SUCCESS) {
                cb_compute_driver.event_destroy(fence->start);
                made = false;
            }
            cb_capture_restore(relaxed, mode);
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
    if (fence->estimate != NULL) {
        __atomic_fetch_sub(&fence->estimate->pending, 1, __ATOMIC_RELAXED);
        if (LOAD(&fence->estimate->mean_ns) == 0)
            cb_siblings_tell(fence->device, fence->estimate->key, 0, false);
    }
    fence->estimate = NULL;
    __atomic_store_n(&fence_state[fence - fences], CB_FENCE_FREE, __ATOMIC_RELEASE);
}

static bool event_record_on(CUevent event, CUstream stream, bool per_thread)
{
    CUresult(CUDAAPI * function)(CUevent, CUstream) = per_thread && cb_compute_driver.event_record_ptsz
                                                          ? cb_compute_driver.event_record_ptsz
                                                          : cb_compute_driver.event_record;
    return function(event, stream) == CUDA_SUCCESS;
}

struct cb_fence *cb_sample_begin(const struct cb_launch *launch, uint64_t until_ns, uint32_t word)
{
    struct cb_fence *fence = fence_take(launch->device);
    if (fence == NULL) return NULL;
    struct cb_device_view view = cb_compute_view(launch->device);
    fence->estimate = launch->estimate;
    ADD(&launch->estimate->pending, 1);
    fence->cost_ns = launch->cost_ns;
    fence->told_ns = fence->running_ns = 0;
    fence->began_ns = launch->begin_ns;
    fence->until_ns = until_ns;
    fence->fresh = LOAD(&launch->entry->inflight_ns) == 0;
    fence->chained = LOAD(&launch->entry->sampled) != 0;
    fence->beside = cb_is_beside(&view, launch->entry, launch->cost_ns);
    fence->word = word;
    /* The work in flight now includes this launch in the container's counter, and not yet in the stream's. */
    fence->clean = LOAD(&view.usage->inflight_ns) <= LOAD(&launch->entry->inflight_ns) + launch->cost_ns &&
                   until_ns != 0;
    fence->sharers = 1;
    if (LOAD(&launch->estimate->mean_ns) == 0) {
        fence->sharers = cb_compute_sharers(launch->device);
        fence->clean = fence->clean && fence->sharers == 1;
    }
    fence->others = LOAD(&view.usage->launch_count) - LOAD(&launch->entry->launch_count) - 1;
    if (!event_record_on(fence->start, launch->stream, launch->per_thread)) {
        cb_fence_drop(fence);
        return NULL;
    }
    cb_sample_taken(launch->estimate, launch->begin_ns);
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
        fence->clean = false; /* the card waited for our second call: the sample includes that pause */
    }
    if (!event_record_on(fence->end, launch->stream, launch->per_thread)) {
        cb_fence_drop(fence);
        return;
    }
    fence->entry = launch->entry;
    fence->gate = launch->tracked == CB_TRACKED_RATE ? (uint32_t)CB_GATE_RATE : (uint32_t)CB_GATE_OPEN;
    fence->first_ns = LOAD(&launch->entry->first_ns);
    fence->amount_ns = __atomic_exchange_n(&launch->entry->unfenced_ns, 0, __ATOMIC_RELAXED);
    STORE(&launch->entry->unfenced_count, 0);
    ADD(&view.usage->charged_ns, fence->amount_ns);
    fence->expected_ns = LOAD(view.own_until_ns);
    ADD(&pending_count[launch->device], 1);
    __atomic_store_n(&fence_state[fence - fences], CB_FENCE_PENDING, __ATOMIC_RELEASE);
    cb_fences_poll(launch->device, 1);
}

/*
 * Correct the expected completion time of a card that also serves others. When work completes, what is queued
 * behind it has all its time ahead: from now on, if the work was long and a thread waited for it, else at least
 * from the last poll that found it unfinished.
 */
static void busy_until_correct(const struct cb_fence *fence, uint64_t now_ns)
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

static void fence_complete(struct cb_fence *fence, bool measured, uint64_t now_ns)
{
    struct cb_device_view view = cb_compute_view(fence->device);
    /* the other launches that the fence covers */
    uint64_t before = fence->estimate != NULL ? fence->cost_ns : 0;
    before = fence->amount_ns > before ? fence->amount_ns - before : 0;
    if (measured && before > 0)
        charge_correct(fence, card_time_charge(&view, fence->first_ns, now_ns, before), before);
    if (measured && fence->estimate != NULL) sample_evaluate(fence, now_ns);
    cb_stream_drop(fence->entry, fence->device, fence->amount_ns);
    if (measured) busy_until_correct(fence, now_ns);
    __atomic_fetch_sub(&pending_count[fence->device], 1, __ATOMIC_RELAXED);
    cb_fence_drop(fence);
}

bool cb_fences_poll(uint32_t device, unsigned misses)
{
    if (LOAD(&pending_count[device]) == 0) return false;
    bool any = false, relaxed;
    CUstreamCaptureMode mode = cb_capture_relax(&relaxed);
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
            uint64_t now = cb_clock_ns();
            STORE(&missed_ns[device], now);
            charge_running(&fences[at], now);
            __atomic_store_n(&fence_state[at], CB_FENCE_PENDING, __ATOMIC_RELEASE);
            continue;
        }
        fence_complete(&fences[at], result == CUDA_SUCCESS, cb_clock_ns());
        any = true;
    }
    cb_capture_restore(relaxed, mode);
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

void cb_fences_forget(CUcontext context)
{
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
            fence_complete(fence, false, 0);
        }
    }
}

void cb_fences_reset(void)
{
    memset(fences, 0, sizeof(fences));
    memset(fence_state, 0, sizeof(fence_state));
    memset(pending_count, 0, sizeof(pending_count));
    memset(beside_part, 0, sizeof(beside_part));
}
