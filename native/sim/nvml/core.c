/*
 * Start and stop of the simulated NVML, handles, errors, and queries of the system.
 *
 * A node stays mapped for the life of the process once it was opened: closing any descriptor of its file would
 * drop the locks by which the kernel tells that this process lives (state.h). Starting again with another
 * CALABASH_SIM maps the other node and leaves the first one mapped.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/nvml/core.h"

#include "sim/node/slot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HANG_LOOK_NS 10000000ull

static pthread_mutex_t core_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int references; /* nvmlInit calls not yet matched by nvmlShutdown */
static struct sim *opened_node; /* kept after the last shutdown: see the top */
static struct sim *current_node;

static char device_bytes[SIM_DEVICES_MAX];
static char mig_bytes[SIM_DEVICES_MAX * SIM_CI_MAX];
static char gi_bytes[SIM_DEVICES_MAX * SIM_GI_MAX];
static char ci_bytes[SIM_DEVICES_MAX * SIM_CI_MAX];

struct sim *nv_node(void)
{
    return __atomic_load_n(&current_node, __ATOMIC_ACQUIRE);
}

nvmlDevice_t nv_device_handle(uint32_t index)
{
    return (nvmlDevice_t)(void *)&device_bytes[index];
}

nvmlDevice_t nv_mig_handle(uint32_t index, uint32_t ci)
{
    return (nvmlDevice_t)(void *)&mig_bytes[index * SIM_CI_MAX + ci];
}

nvmlGpuInstance_t nv_gi_handle(uint32_t index, uint32_t gi)
{
    return (nvmlGpuInstance_t)(void *)&gi_bytes[index * SIM_GI_MAX + gi];
}

nvmlComputeInstance_t nv_ci_handle(uint32_t index, uint32_t ci)
{
    return (nvmlComputeInstance_t)(void *)&ci_bytes[index * SIM_CI_MAX + ci];
}

/* Index of a handle in its table, or SIZE_MAX. */
static size_t handle_index(const void *handle, const char *table, size_t size)
{
    uintptr_t at = (uintptr_t)handle, base = (uintptr_t)table;

    return at >= base && at < base + size ? at - base : SIZE_MAX;
}

/* An injected hang: as with a real driver, the call blocks and cannot be interrupted. */
static void hang_wait(const struct sim_device *d)
{
    uint64_t now, until;

    while ((now = sim_now()) < (until = __atomic_load_n(&d->faults.hang_until_ns, __ATOMIC_RELAXED))) {
        uint64_t left = until - now < HANG_LOOK_NS ? until - now : HANG_LOOK_NS;

        nanosleep(&(struct timespec){.tv_nsec = (long)left}, NULL);
    }
}

static nvmlReturn_t target_fill(struct nv_target *target, size_t index)
{
    struct sim *s = nv_node();

    if (s == NULL) return NVML_ERROR_UNINITIALIZED;
    if (index >= s->node->device_count) return NVML_ERROR_INVALID_ARGUMENT;
    *target = (struct nv_target){.sim = s, .device = &s->node->device[index], .index = (uint32_t)index};
    target->card = card_of(target->device);
    return target->card != NULL ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

static nvmlReturn_t target_fill_mig(struct nv_target *target, size_t index, size_t ci)
{
    nvmlReturn_t result = target_fill(target, index);

    if (result != NVML_SUCCESS) return result;
    const struct sim_ci *c = &target->device->mig.ci[ci];

    if (!c->used || c->gi_id >= SIM_GI_MAX) return NVML_ERROR_NOT_FOUND;
    target->mig = true;
    target->ci = (uint32_t)ci;
    target->gi = c->gi_id;
    return NVML_SUCCESS;
}

nvmlReturn_t nv_resolve(nvmlDevice_t handle, unsigned int want, struct nv_target *target)
{
    nvmlReturn_t result;
    size_t at;

    if (nv_node() == NULL) return NVML_ERROR_UNINITIALIZED;
    if ((at = handle_index(handle, device_bytes, sizeof device_bytes)) != SIZE_MAX) {
        if (!(want & NV_CARD)) return NVML_ERROR_INVALID_ARGUMENT;
        result = target_fill(target, at);
    } else if ((at = handle_index(handle, mig_bytes, sizeof mig_bytes)) != SIZE_MAX) {
        if (!(want & NV_MIG)) return NVML_ERROR_NOT_SUPPORTED;
        result = target_fill_mig(target, at / SIM_CI_MAX, at % SIM_CI_MAX);
    } else {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (result != NVML_SUCCESS || (want & NV_LOST)) return result;
    hang_wait(target->device);
    return target->device->faults.lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nv_resolve_gi(nvmlGpuInstance_t handle, struct nv_target *target)
{
    size_t at = handle_index(handle, gi_bytes, sizeof gi_bytes);

    if (nv_node() == NULL) return NVML_ERROR_UNINITIALIZED;
    if (at == SIZE_MAX) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = target_fill(target, at / SIM_GI_MAX);

    if (result != NVML_SUCCESS) return result;
    target->gi = (uint32_t)(at % SIM_GI_MAX);
    if (!target->device->mig.gi[target->gi].used) return NVML_ERROR_NOT_FOUND;
    return target->device->faults.lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nv_resolve_ci(nvmlComputeInstance_t handle, struct nv_target *target)
{
    size_t at = handle_index(handle, ci_bytes, sizeof ci_bytes);

    if (nv_node() == NULL) return NVML_ERROR_UNINITIALIZED;
    if (at == SIZE_MAX) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = target_fill_mig(target, at / SIM_CI_MAX, at % SIM_CI_MAX);

    if (result != NVML_SUCCESS) return result;
    return target->device->faults.lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nv_copy(char *out, unsigned int size, const char *text)
{
    size_t length = strlen(text);

    NV_NEED(out);
    if (length >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text, length + 1);
    return NVML_SUCCESS;
}

uint64_t nv_realtime_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * NVML_SECOND_NS + (uint64_t)t.tv_nsec;
}

static nvmlReturn_t open_error_result(int error)
{
    switch (error) {
    case -EACCES:
    case -EPERM:
        return NVML_ERROR_NO_PERMISSION;
    case -EPROTO:
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    default:
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
}

/* Map the node that the environment names, unless it is mapped already. Requires the lock. */
static nvmlReturn_t node_open(void)
{
    const char *path = getenv("CALABASH_SIM");

    if (opened_node != NULL && path != NULL && strcmp(opened_node->path, path) == 0) return NVML_SUCCESS;
    struct sim *s = calloc(1, sizeof *s);

    if (s == NULL) return NVML_ERROR_MEMORY;
    int result = sim_open(s, NULL);

    if (result == 0 && card_check_node(s->node) != NULL) result = -EPROTO;
    if (result != 0) {
        free(s);
        return open_error_result(result);
    }
    opened_node = s;
    return NVML_SUCCESS;
}

NVML_API nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    nvmlReturn_t result = NVML_SUCCESS;

    pthread_mutex_lock(&core_lock);
    if (references == 0) result = node_open();
    if (result == NVML_SUCCESS) {
        references++;
        __atomic_store_n(&current_node, opened_node, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&core_lock);
    return result;
}

NVML_API nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

NVML_API nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

NVML_API nvmlShutdown(void)
{
    nvmlReturn_t result = NVML_SUCCESS;

    pthread_mutex_lock(&core_lock);
    if (references == 0)
        result = NVML_ERROR_UNINITIALIZED;
    else if (--references == 0)
        __atomic_store_n(&current_node, NULL, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&core_lock);
    return result;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t result)
{
    static const struct {
        nvmlReturn_t code;
        const char *text;
    } texts[] = {
        {NVML_SUCCESS, "Success"},
        {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
        {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
        {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
        {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
        {NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized"},
        {NVML_ERROR_NOT_FOUND, "Not Found"},
        {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
        {NVML_ERROR_INSUFFICIENT_POWER, "Insufficient External Power"},
        {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
        {NVML_ERROR_TIMEOUT, "Timeout"},
        {NVML_ERROR_IRQ_ISSUE, "Interrupt Request Issue"},
        {NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"},
        {NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
        {NVML_ERROR_CORRUPTED_INFOROM, "Corrupted infoROM"},
        {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
        {NVML_ERROR_RESET_REQUIRED, "GPU requires reset"},
        {NVML_ERROR_OPERATING_SYSTEM, "GPU access blocked by the operating system"},
        {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
        {NVML_ERROR_IN_USE, "In use by another client"},
        {NVML_ERROR_MEMORY, "Insufficient Memory"},
        {NVML_ERROR_NO_DATA, "No data"},
        {NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
        {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
        {NVML_ERROR_DEPRECATED, "Deprecated"},
        {NVML_ERROR_NOT_READY, "Not Ready"},
        {NVML_ERROR_INVALID_STATE, "Invalid State"},
    };

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].code == result) return texts[i].text;
    return "Unknown Error";
}

NVML_API nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    struct sim *s = nv_node();

    return s != NULL ? nv_copy(version, length, s->node->driver_version) : NVML_ERROR_UNINITIALIZED;
}

NVML_API nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    struct sim *s = nv_node();

    return s != NULL ? nv_copy(version, length, s->node->nvml_version) : NVML_ERROR_UNINITIALIZED;
}

NVML_API nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *info, unsigned int length)
{
    struct sim *s = nv_node();
    char branch[32];

    if (s == NULL) return NVML_ERROR_UNINITIALIZED;
    NV_NEED(info);
    snprintf(branch, sizeof branch, "r%.3s_00", s->node->driver_version);
    return nv_copy(info->branch, length < sizeof info->branch ? length : (unsigned int)sizeof info->branch,
                   branch);
}

NVML_API nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    struct sim *s = nv_node();

    if (s == NULL) return NVML_ERROR_UNINITIALIZED;
    NV_NEED(version);
    *version = (int)s->node->driver_cuda;
    return NVML_SUCCESS;
}

NVML_API nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

NVML_API nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    struct sim *s = nv_node();

    if (s == NULL) return NVML_ERROR_UNINITIALIZED;
    if (name == NULL || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < sim_procs_used(s->node); i++) {
        if (__atomic_load_n(&s->node->proc[i].state, __ATOMIC_ACQUIRE) != SIM_SLOT_LIVE) continue;
        if ((unsigned int)sim_process_pid(s, i) != pid) continue;
        snprintf(name, length, "%.*s", (int)sizeof s->node->proc[i].name, s->node->proc[i].name);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlDeviceGetCount_v2(unsigned int *count)
{
    struct sim *s = nv_node();

    if (s == NULL) return NVML_ERROR_UNINITIALIZED;
    NV_NEED(count);
    *count = s->node->device_count;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetCount(unsigned int *count)
{
    return nvmlDeviceGetCount_v2(count);
}

NVML_API nvmlGetExcludedDeviceCount(unsigned int *count)
{
    NV_NEED(count);
    *count = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlUnitGetCount(unsigned int *count)
{
    if (nv_node() == NULL) return NVML_ERROR_UNINITIALIZED;
    NV_NEED(count);
    *count = 0; /* S-class systems only */
    return NVML_SUCCESS;
}
