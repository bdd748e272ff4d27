/* The limiter's access to the pages and to the processes of its container. */
#define _GNU_SOURCE
#include "shim/compute_limiter.h"

#include "shim/compute_words.h"

#include <stddef.h>
#include <time.h>

struct cb_compute_driver cb_compute_driver;
const struct cb_limits *cb_compute_limits;
uint32_t cb_captures;
static struct cb_usage *usage_page;
static struct cb_usage_proc *own_proc;
static uint64_t own_launches[CB_DEVICES_MAX];

struct cb_device_view cb_compute_view(uint32_t device)
{
    return (struct cb_device_view){.limits = &cb_compute_limits->device[device],
                                   .usage = &usage_page->device[device],
                                   .own_inflight_ns = &own_proc->inflight_ns[device],
                                   .own_until_ns = &own_proc->inflight_until_ns[device],
                                   .index = device};
}

void cb_limiter_init(const struct cb_limits *limits, struct cb_usage *usage, struct cb_usage_proc *proc,
                     const struct cb_compute_driver *driver)
{
    cb_compute_driver = *driver;
    usage_page = usage;
    own_proc = proc;
    __atomic_store_n(&cb_compute_limits, limits, __ATOMIC_RELEASE);
}

void cb_limiter_after_fork(struct cb_usage_proc *proc)
{
    own_proc = proc;
    cb_captures = 0;
}

uint64_t cb_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct cb_usage_kernel *cb_compute_kernels(void)
{
    return usage_page->kernel;
}

uint32_t cb_compute_self(void)
{
    return 1u + (uint32_t)(own_proc - usage_page->proc);
}

uint32_t cb_compute_sharers(uint32_t device)
{
    uint32_t count = LOAD(&cb_compute_limits->device[device].neighbours);
    if (LOAD(&usage_page->device[device].launch_count) == LOAD(&own_launches[device]))
        return count + 1; /* no other processes */
    for (uint32_t i = 0; i < CB_PROCS_MAX; i++) {
        const struct cb_usage_proc *proc = &usage_page->proc[i];
        /* not inflight_ns: others drop that when it takes too long */
        count += LOAD(&proc->state) == CB_PROC_LIVE && LOAD(&proc->inflight_until_ns[device]) != 0;
    }
    return count > 0 ? count : 1;
}

uint64_t cb_compute_launched(uint32_t device, uint64_t launches)
{
    /* A lost count of our own costs a check of the other processes. */
    STORE(&own_launches[device], LOAD(&own_launches[device]) + launches);
    return ADD(&usage_page->device[device].launch_count, launches) + launches;
}

void cb_compute_waiting(uint32_t device, int change)
{
    ADD(&usage_page->device[device].waiting_count, (uint32_t)change);
    ADD(&own_proc->waiting[device], (uint32_t)change);
}

/*
 * Work in flight is removed from the container's counter when its process polls its fences. A process that
 * turned to other work does not poll, and one that was killed never will: what should have been done long ago
 * is removed on its behalf.
 */
void cb_compute_expire_siblings(uint32_t device, uint64_t now_ns)
{
    struct cb_device_view one = cb_compute_view(device), *view = &one;
    uint64_t counted = LOAD(&view->usage->inflight_ns), sum = 0;
    for (uint32_t i = 0; i < CB_PROCS_MAX; i++) {
        struct cb_usage_proc *proc = &usage_page->proc[i];
        if (LOAD(&proc->state) != CB_PROC_LIVE) continue;
        uint64_t inflight = LOAD(&proc->inflight_ns[view->index]);
        uint64_t until = LOAD(&proc->inflight_until_ns[view->index]);
        if (proc != own_proc && inflight > 0 && now_ns > until + CB_INFLIGHT_NS + 2 * inflight &&
            __atomic_compare_exchange_n(&proc->inflight_ns[view->index], &inflight, 0, false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            continue;
        sum += inflight;
    }
    if (sum < counted)
        __atomic_compare_exchange_n(&view->usage->inflight_ns, &counted, sum, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
}

bool cb_stream_captures(CUstream stream, bool per_thread)
{
    if (LOAD(&cb_captures) == 0) return false;
    CUresult(CUDAAPI * ask)(CUstream, CUstreamCaptureStatus *) =
        per_thread && cb_compute_driver.stream_is_capturing_ptsz ? cb_compute_driver.stream_is_capturing_ptsz
                                                                 : cb_compute_driver.stream_is_capturing;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    /* An error here means that the legacy stream is part of another thread's capture: then touch nothing. */
    return ask == NULL || ask(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/*
 * While a thread captures in global mode, a query of events would invalidate its capture; relaxed mode allows
 * it.
 */
CUstreamCaptureMode cb_capture_relax(bool *changed)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    *changed = LOAD(&cb_captures) != 0 && cb_compute_driver.thread_exchange_capture_mode != NULL &&
               cb_compute_driver.thread_exchange_capture_mode(&mode) == CUDA_SUCCESS;
    return mode;
}

void cb_capture_restore(bool changed, CUstreamCaptureMode mode)
{
    if (changed) cb_compute_driver.thread_exchange_capture_mode(&mode);
}
