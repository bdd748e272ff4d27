/*
 * Common part of the simulated libnvidia-ml.so.1: the opened node, and resolution of handles.
 *
 * A handle is the address of a static byte, so a foreign pointer is recognised and refused. A physical device
 * has one for life; a GPU instance, a compute instance and a MIG device have one for each index in the state
 * file.
 */
#ifndef CALABASH_SIM_NVML_CORE_H
#define CALABASH_SIM_NVML_CORE_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include "sim/node/device_build.h"
#include "sim/node/state.h"

/* Everything is hidden except the functions that are defined with this. */
#define NVML_API __attribute__((visibility("default"))) nvmlReturn_t

#define NVML_NO_INSTANCE 0xFFFFFFFFu
#define NVML_SECOND_NS   1000000000ull

/* The object of a device handle: a card, or one compute instance of one of its GPU instances. */
struct nv_target {
    struct sim *sim;
    struct sim_device *device;
    const struct card *card;
    uint32_t index;
    bool mig;
    uint32_t gi, ci; /* indices in the state file; valid if mig */
};

/* Conditions under which a handle is accepted: a card that has fallen off the bus, a MIG device. */
enum nv_want { NV_CARD = 1, NV_MIG = 2, NV_LOST = 4 };

/* The opened node, or NULL: return NVML_ERROR_UNINITIALIZED. */
struct sim *nv_node(void);

/* Resolve a handle; `want` is a sum of enum nv_want. */
nvmlReturn_t nv_resolve(nvmlDevice_t handle, unsigned int want, struct nv_target *target);

nvmlDevice_t nv_device_handle(uint32_t index);
nvmlDevice_t nv_mig_handle(uint32_t index, uint32_t ci);
nvmlGpuInstance_t nv_gi_handle(uint32_t index, uint32_t gi);
nvmlComputeInstance_t nv_ci_handle(uint32_t index, uint32_t ci);
nvmlReturn_t nv_resolve_gi(nvmlGpuInstance_t handle, struct nv_target *target);
nvmlReturn_t nv_resolve_ci(nvmlComputeInstance_t handle, struct nv_target *target);

/* Copy a text into a caller's buffer; NVML_ERROR_INSUFFICIENT_SIZE if it does not fit. */
nvmlReturn_t nv_copy(char *out, unsigned int size, const char *text);

/* Resolve `device` for a card, or return the error from the calling function. */
#define NV_TARGET(target, handle, want)                                   \
    struct nv_target target;                                              \
    do {                                                                  \
        nvmlReturn_t nv_result = nv_resolve((handle), (want), &(target)); \
        if (nv_result != NVML_SUCCESS) return nv_result;                  \
    } while (0)

/* Return from the calling function if an output pointer is missing. */
#define NV_NEED(pointer)                                           \
    do {                                                           \
        if ((pointer) == NULL) return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)

/* CLOCK_REALTIME, which NVML's time stamps use, and its distance from the state file's CLOCK_MONOTONIC. */
uint64_t nv_realtime_ns(void);

#endif
