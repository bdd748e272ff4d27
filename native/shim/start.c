/*
 * The first CUDA or NVML call of a process: find the slot, take a process slot, or refuse.
 *
 * Nothing happens before that call, so a program that never touches a GPU pays for the library's load alone.
 * The driver is loaded before the start begins (see real.c on locks), so other threads wait for file
 * operations only. A forked child keeps the mapped pages and the lease, which it shares with its parent, and
 * takes a process slot of its own on its first call; the parent's allocations are none of its own.
 */
#define _GNU_SOURCE
#include "shim/start.h"

#include "shim/compute.h"
#include "shim/device.h"
#include "shim/process.h"
#include "shim/real.h"
#include "shim/shown.h"
#include "shim/slot.h"
#include "shim/spin.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool handlers_registered, mapped; /* guarded by the BUSY phase */
static bool limiter_started;
static cb_spin limiter;

static void in_child(void)
{
    cb.proc = NULL;
    cb_run_at_fork();
    cb.cuda_ready = cb.nvml_ready = 0;
    limiter.held = 0;
    if (cb.phase == CB_PHASE_READY || cb.phase == CB_PHASE_BUSY) cb.phase = CB_PHASE_NEW;
}

static void start_limiter(void)
{
    struct cb_compute_driver driver;
    driver.ctx_get_current = CB_REAL(cuCtxGetCurrent);
    driver.event_create = CB_REAL(cuEventCreate);
    driver.event_destroy = CB_REAL(cuEventDestroy_v2);
    driver.event_record = CB_REAL(cuEventRecord);
    driver.event_record_ptsz = CB_REAL(cuEventRecord_ptsz);
    driver.event_query = CB_REAL(cuEventQuery);
    driver.event_elapsed_time = CB_REAL(cuEventElapsedTime);
    driver.stream_is_capturing = CB_REAL(cuStreamIsCapturing);
    driver.stream_is_capturing_ptsz = CB_REAL(cuStreamIsCapturing_ptsz);
    driver.thread_exchange_capture_mode = CB_REAL(cuThreadExchangeStreamCaptureMode);
    driver.current_device = cb_device_current;
    cb_compute_init(cb.limits, cb.usage, cb.proc, &driver);
}

static bool begin(void)
{
    if (!handlers_registered) {
        handlers_registered = pthread_atfork(NULL, NULL, in_child) == 0;
        if (!handlers_registered) {
            cb_say("no memory to watch for fork");
            return false;
        }
    }
    if (!mapped) {
        struct cb_slot_files files;
        if (!cb_slot_open(&files) || !cb_shown_learn(files.limits->device_count)) return false;
        cb.limits = files.limits;
        cb.usage = files.usage;
        cb.device_count = files.limits->device_count;
        mapped = true; /* the lease's descriptor stays open for the life of the process */
    }
    int slot = cb_process_enter(cb.usage);
    if (slot < 0) {
        cb_say("%u processes already use this slice", CB_PROCS_MAX);
        return false;
    }
    cb.slot = (uint32_t)slot;
    cb.proc = &cb.usage->proc[slot];
    if (limiter_started) cb_compute_after_fork(cb.proc);
    return true;
}

static bool start(void)
{
    for (;;) {
        int phase = __atomic_load_n(&cb.phase, __ATOMIC_ACQUIRE);
        if (phase == CB_PHASE_READY || phase == CB_PHASE_REFUSED) return phase == CB_PHASE_READY;
        if (phase == CB_PHASE_BUSY) {
            sched_yield();
            continue;
        }
        if (!__atomic_compare_exchange_n(&cb.phase, &phase, CB_PHASE_BUSY, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_ACQUIRE))
            continue;
        int saved = errno;
        bool ready = begin();
        errno = saved;
        __atomic_store_n(&cb.phase, ready ? CB_PHASE_READY : CB_PHASE_REFUSED, __ATOMIC_RELEASE);
    }
}

CUresult cb_start_cuda(void)
{
    bool loaded = cb_load_cuda();
    if (!start()) return CUDA_ERROR_NOT_PERMITTED;
    if (!loaded) return CUDA_ERROR_NO_DEVICE;
    cb_lock(&limiter);
    if (!limiter_started) start_limiter();
    limiter_started = true;
    cb_unlock(&limiter);
    __atomic_store_n(&cb.cuda_ready, 1, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

nvmlReturn_t cb_start_nvml(void)
{
    bool loaded = cb_load_nvml();
    if (!start()) return NVML_ERROR_NO_PERMISSION;
    if (!loaded) return NVML_ERROR_LIBRARY_NOT_FOUND;
    __atomic_store_n(&cb.nvml_ready, 1, __ATOMIC_RELEASE);
    return NVML_SUCCESS;
}
