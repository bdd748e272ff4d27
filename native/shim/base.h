/*
 * Common base of the shim's units: the driver's types, the state of this process, one message to the user, and
 * two lists in which units register functions, so that a lower unit never names a higher one.
 *
 * The shim is loaded before everything else of a tenant's process and intercepts the CUDA driver API and NVML.
 * It does nothing until the first such call; then start.c finds the slot, maps its pages and takes a process
 * slot. Real functions are called as CB_REAL(cuMemAlloc_v2)(...), see real.h.
 */
#ifndef CALABASH_SHIM_BASE_H
#define CALABASH_SHIM_BASE_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "api/cuda_api.h" /* <cuda.h> and more: every version and every per-thread variant under its own name */
#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop

#include "page/page.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CB_LIKELY(x)   __builtin_expect(!!(x), 1)
#define CB_UNLIKELY(x) __builtin_expect(!!(x), 0)

#define CB_ORDINALS_MAX 64

enum cb_phase { CB_PHASE_NEW = 0, CB_PHASE_BUSY = 1, CB_PHASE_READY = 2, CB_PHASE_REFUSED = 3 };

struct cb_shim {
    int cuda_ready; /* slot taken, driver loaded: tested by every CUDA hook */
    int nvml_ready;
    int phase; /* enum cb_phase, of the slot; everything below is valid once READY */
    uint32_t slot;
    uint32_t device_count;
    /* the devices of the slot that are visible in this container, one bit each; visible_devices.h */
    uint32_t shown;
    int ordinal_count; /* driver ordinals known; 0 before cuInit */
    const struct cb_limits *limits;
    struct cb_usage *usage;
    struct cb_usage_proc *proc;
    int8_t device_of_ordinal[CB_ORDINALS_MAX]; /* slot device, or -1: not in this slice */
};
extern struct cb_shim cb;

/* Write one line to standard error, once per process: the first cause is the one to fix. */
void cb_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/*
 * Register a function of this unit that a forked child runs first: the parent's records do not apply to the
 * child.
 */
#define CB_AT_FORK(function) \
    static void (*const at_fork_##function)(void) __attribute__((used, section("cb_at_fork"))) = function
void cb_run_at_fork(void);

/* Register a function of this unit that may free unused memory of a device, called when a reservation fails. */
#define CB_ON_SHORTAGE(function)                                                                        \
    static void (*const on_shortage_##function)(int) __attribute__((used, section("cb_on_shortage"))) = \
        function
void cb_run_on_shortage(int device);

#endif
