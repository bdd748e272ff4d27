/*
 * Start of the shim at the first CUDA or NVML call of a process: find the slot and take a process slot, or
 * refuse.
 *
 * Nothing happens before that call, so a program that never uses a GPU pays only for loading the library. The
 * driver is loaded before the start begins (see real.c on locks), so other threads wait for file operations
 * only. A forked child keeps the mapped pages and the lease, which it shares with its parent, and takes a
 * process slot of its own on its first call; it does not own the parent's allocations.
 */
#define _GNU_SOURCE
#include "shim/start.h"

#include "shim/compute.h"
#include "shim/device.h"
#include "shim/process.h"
#include "shim/real.h"
#include "shim/slot.h"
#include "shim/spin.h"
#include "shim/visible_devices.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool handlers_registered, mapped; /* guarded by the BUSY phase */
static bool limiter_started;
static cb_spin limiter_lock;

static void start_after_fork(void)
{
    cb.proc = NULL;
    cb_run_at_fork();
    cb.cuda_ready = cb.nvml_ready = 0;
    limiter_lock.held = 0;
    if (cb.phase == CB_PHASE_READY || cb.phase == CB_PHASE_BUSY) cb.phase = CB_PHASE_NEW;
}

static void limiter_start(void)
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

static bool slot_enter(void)
{
    if (!handlers_registered) {
        handlers_registered = pthread_atfork(NULL, NULL, start_after_fork) == 0;
        if (!handlers_registered) {
            cb_say("cannot register the fork handler: out of memory");
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

static bool process_start(void)
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
        bool ready = slot_enter();
        errno = saved;
        __atomic_store_n(&cb.phase, ready ? CB_PHASE_READY : CB_PHASE_REFUSED, __ATOMIC_RELEASE);
    }
}

CUresult cb_start_cuda(void)
{
    bool loaded = cb_load_cuda();
    if (!process_start()) return CUDA_ERROR_NOT_PERMITTED;
    if (!loaded) return CUDA_ERROR_NO_DEVICE;
    cb_lock(&limiter_lock);
    if (!limiter_started) limiter_start();
    limiter_started = true;
    cb_unlock(&limiter_lock);
    __atomic_store_n(&cb.cuda_ready, 1, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

nvmlReturn_t cb_start_nvml(void)
{
    bool loaded = cb_load_nvml();
    if (!process_start()) return NVML_ERROR_NO_PERMISSION;
    if (!loaded) return NVML_ERROR_LIBRARY_NOT_FOUND;
    __atomic_store_n(&cb.nvml_ready, 1, __ATOMIC_RELEASE);
    return NVML_SUCCESS;
}
