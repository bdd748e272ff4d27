/*
 * Test of a kernel that was never measured, at the gate and in the counters, with a clock and a driver of the
 * test.
 *
 *   unmeasured gate MEAN-US PENDING      how long a launch waits behind work that does not progress
 *   unmeasured fence MEAN-US SHARERS MS  the charge for a kernel of so many milliseconds, in ten steps while
 *   it runs and at its end
 *
 * Prints microseconds. The limiter's own files are included unchanged.
 */
#include "../../../native/shim/compute_fence.c"
#include "../../../native/shim/compute_gate.c"

#include <stdio.h>
#include <stdlib.h>

#define US      1000u
#define MS      1000000u
#define STEP_NS (5 * MS)

static struct cb_limits limits = {.device_count = 1};
static struct cb_usage_device usage;
static uint64_t now_ns = 1000 * MS, step_ns, done_ns, own_inflight_ns, own_until_ns;
static uint32_t sharers = 1;
static CUevent end_event;

/* ---- replacements of the rest of the library and of the driver ---- */

struct cb_compute_driver cb_compute_driver;
const struct cb_limits *cb_compute_limits = &limits;

uint64_t cb_clock_ns(void)
{
    return now_ns += step_ns;
}

struct cb_device_view cb_compute_view(uint32_t device)
{
    return (struct cb_device_view){&limits.device[device], &usage, &own_inflight_ns, &own_until_ns, device};
}

uint32_t cb_compute_sharers(uint32_t device)
{
    (void)device;
    return sharers;
}

void cb_compute_expire_siblings(uint32_t device, uint64_t at_ns)
{
    (void)device, (void)at_ns;
}

void cb_compute_waiting(uint32_t device, int change)
{
    (void)device, (void)change;
}

void cb_streams_flush(uint64_t before_ns)
{
    (void)before_ns;
}

void cb_stream_drop(struct cb_stream *entry, uint32_t device, uint64_t amount_ns)
{
    (void)entry, (void)device, (void)amount_ns;
}

bool cb_is_beside(const struct cb_device_view *view, const struct cb_stream *entry, uint64_t booked_ns)
{
    (void)view, (void)entry, (void)booked_ns;
    return false;
}

uint64_t cb_siblings_cost(uint32_t device, uint64_t key)
{
    (void)device, (void)key;
    return CB_UNKNOWN_NS;
}

uint64_t cb_siblings_guess(uint32_t device, uint64_t key)
{
    (void)device, (void)key;
    return 0;
}

bool cb_siblings_measure(uint32_t device, uint64_t key, uint64_t at_ns)
{
    (void)device, (void)key, (void)at_ns;
    return false;
}

void cb_siblings_tell(uint32_t device, uint64_t key, uint64_t mean_ns, bool certain)
{
    (void)device, (void)key, (void)mean_ns, (void)certain;
}

void cb_estimate_believe(struct cb_estimate *estimate, uint64_t mean)
{
    estimate->mean_ns = mean;
}

bool cb_estimate_learn_clean(struct cb_estimate *estimate, uint64_t mean, uint64_t measured)
{
    (void)mean;
    estimate->mean_ns = measured;
    return true;
}

void cb_estimate_learn_unclean(struct cb_estimate *estimate, uint64_t mean, uint64_t measured)
{
    (void)mean;
    estimate->mean_ns = measured;
}

void cb_sample_taken(struct cb_estimate *estimate, uint64_t at_ns)
{
    (void)estimate, (void)at_ns;
}

CUstreamCaptureMode cb_capture_relax(bool *changed)
{
    *changed = false;
    return CU_STREAM_CAPTURE_MODE_RELAXED;
}

void cb_capture_restore(bool changed, CUstreamCaptureMode mode)
{
    (void)changed, (void)mode;
}

static CUresult CUDAAPI ctx_get_current(CUcontext *context)
{
    *context = (CUcontext)(uintptr_t)1;
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI event_create(CUevent *event, unsigned int flags)
{
    static uintptr_t made;
    (void)flags;
    *event = end_event = (CUevent)++made; /* the end is made last */
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI event_record(CUevent event, CUstream stream)
{
    (void)event, (void)stream;
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI event_query(CUevent event)
{
    return event == end_event && now_ns < done_ns ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult CUDAAPI event_elapsed_time(float *ms, CUevent start, CUevent end)
{
    (void)start, (void)end;
    *ms = (float)(done_ns - 1000 * MS) / MS;
    return CUDA_SUCCESS;
}

/* ---- the tests ---- */

/* A sleep ends at once: the clock of the test is far behind the kernel's. */
static int gate(uint64_t mean_ns, uint32_t pending)
{
    struct cb_estimate estimate = {.mean_ns = mean_ns, .pending = pending};
    struct cb_launch launch = {.cost_ns = mean_ns != 0 ? mean_ns : CB_UNKNOWN_NS, .estimate = &estimate};
    struct cb_device_view view = cb_compute_view(0);
    struct cb_look look;
    uint64_t began_ns = now_ns;
    usage.inflight_ns = own_inflight_ns = CB_INFLIGHT_NS_MAX + 2 * launch.cost_ns;
    usage.busy_until_ns = now_ns;
    step_ns = STEP_NS;
    enum cb_verdict verdict = cb_gate_look(&view, &launch, false, false, now_ns, &look);
    if (verdict != CB_WAIT_INFLIGHT) return 1;
    cb_gate_wait(&view, &launch, &look, verdict);
    printf("%llu\n", (unsigned long long)((now_ns - began_ns) / US));
    return 0;
}

static int fence(uint64_t mean_ns, uint64_t kernel_ns)
{
    struct cb_estimate estimate = {.mean_ns = mean_ns};
    struct cb_stream stream = {.unfenced_ns = mean_ns != 0 ? mean_ns : CB_UNKNOWN_NS};
    struct cb_launch launch = {
        .cost_ns = stream.unfenced_ns, .begin_ns = now_ns, .estimate = &estimate, .entry = &stream};
    cb_compute_driver = (struct cb_compute_driver){.ctx_get_current = ctx_get_current,
                                                   .event_create = event_create,
                                                   .event_record = event_record,
                                                   .event_query = event_query,
                                                   .event_elapsed_time = event_elapsed_time};
    done_ns = now_ns + kernel_ns;
    launch.fence = cb_sample_begin(&launch, UINT64_MAX, 0);
    if (launch.fence == NULL) return 1;
    usage.launch_count = stream.launch_count = 1;
    cb_fence_end(&launch);
    for (int tenth = 1; tenth <= 10; tenth++) {
        for (uint64_t until_ns = launch.begin_ns + kernel_ns / 10 * (unsigned)tenth; now_ns < until_ns;) {
            now_ns += STEP_NS;
            (void)cb_fences_poll(0, 1);
        }
        printf("%llu\n", (unsigned long long)(usage.charged_ns / US));
    }
    return estimate.pending != 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "gate") == 0)
        return gate(strtoull(argv[2], NULL, 10) * US, (uint32_t)atoi(argv[3]));
    if (argc == 5 && strcmp(argv[1], "fence") == 0) {
        sharers = (uint32_t)atoi(argv[3]);
        return fence(strtoull(argv[2], NULL, 10) * US, strtoull(argv[4], NULL, 10) * MS);
    }
    return 64;
}
