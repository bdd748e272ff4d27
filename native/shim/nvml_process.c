/*
 * Hooks of NVML's process lists, reduced to the processes of the container.
 *
 * A process is the container's if a process slot names it, by its pid here or by the pid that the agent sees;
 * the list then shows the pid here. The driver writes into our own buffer, because the tenant's may be too
 * small for the processes that are filtered out.
 */
#include "shim/base.h"

#include "shim/device.h"
#include "shim/nvml_view.h"
#include "shim/real.h"
#include "shim/start.h"

#include <stdlib.h>
#include <time.h>

#define ENTRIES_MAX 4096u

static bool pid_is_member(unsigned int *pid)
{
    for (uint32_t i = 0; i < CB_PROCS_MAX; i++) {
        const struct cb_usage_proc *proc = &cb.usage->proc[i];
        if (__atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) != CB_PROC_LIVE || proc->pid <= 0) continue;
        if (*pid == (unsigned int)proc->pid || (proc->host_pid > 0 && *pid == (unsigned int)proc->host_pid)) {
            *pid = (unsigned int)proc->pid;
            return true;
        }
    }
    return false;
}

/* Return `kept` entries to a caller whose buffer holds `capacity`, as the driver would. */
#define HAND_OVER(kept, all, capacity, entries, count)                                                   \
    do {                                                                                                 \
        *(count) = kept;                                                                                 \
        if (kept > (capacity) || ((entries) == NULL && kept > 0)) result = NVML_ERROR_INSUFFICIENT_SIZE; \
        for (unsigned int i = 0; result == NVML_SUCCESS && i < kept; i++)                                \
            (entries)[i] = (all)[i];                                                                     \
    } while (0)

#define KEEP_OURS(all, found, kept)                             \
    for (unsigned int i = 0; i < found && i < ENTRIES_MAX; i++) \
        if (pid_is_member(&(all)[i].pid)) (all)[kept++] = (all)[i];

#define LIST(name, type)                                                         \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *infoCount, type *infos) \
    {                                                                            \
        CB_ENTER_NVML();                                                         \
        if (infoCount == NULL) return NVML_ERROR_INVALID_ARGUMENT;               \
        unsigned int found = ENTRIES_MAX, kept = 0;                              \
        type *all = calloc(found, sizeof(*all));                                 \
        if (all == NULL) return NVML_ERROR_MEMORY;                               \
        nvmlReturn_t result = CB_REAL(name)(device, &found, all);                \
        if (result == NVML_SUCCESS) {                                            \
            KEEP_OURS(all, found, kept)                                          \
            HAND_OVER(kept, all, *infoCount, infos, infoCount);                  \
        }                                                                        \
        free(all);                                                               \
        return result;                                                           \
    }

LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
                                             unsigned int *processSamplesCount,
                                             unsigned long long lastSeenTimeStamp)
{
    CB_ENTER_NVML();
    if (processSamplesCount == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned int found = ENTRIES_MAX, kept = 0, capacity = utilization != NULL ? *processSamplesCount : 0;
    nvmlProcessUtilizationSample_t *all = calloc(found, sizeof(*all));
    if (all == NULL) return NVML_ERROR_MEMORY;
    nvmlReturn_t result = CB_REAL(nvmlDeviceGetProcessUtilization)(device, all, &found, lastSeenTimeStamp);
    if (result == NVML_SUCCESS) {
        KEEP_OURS(all, found, kept)
        HAND_OVER(kept, all, capacity, utilization, processSamplesCount);
        if (kept == 0) result = NVML_ERROR_NOT_FOUND; /* as the driver answers if no process has worked */
    }
    free(all);
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t *procesesUtilInfo)
{
    CB_ENTER_NVML();
    if (procesesUtilInfo == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlProcessesUtilizationInfo_t request = *procesesUtilInfo;
    unsigned int kept = 0, capacity = request.procUtilArray != NULL ? request.processSamplesCount : 0;
    nvmlProcessUtilizationInfo_v1_t *all = calloc(ENTRIES_MAX, sizeof(*all));
    if (all == NULL) return NVML_ERROR_MEMORY;
    request.processSamplesCount = ENTRIES_MAX;
    request.procUtilArray = all;
    nvmlReturn_t result = CB_REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, &request);
    if (result == NVML_SUCCESS) {
        procesesUtilInfo->lastSeenTimeStamp = request.lastSeenTimeStamp;
        KEEP_OURS(all, request.processSamplesCount, kept)
        HAND_OVER(kept, all, capacity, procesesUtilInfo->procUtilArray,
                  &procesesUtilInfo->processSamplesCount);
        if (kept == 0) result = NVML_ERROR_NOT_FOUND;
    }
    free(all);
    return result;
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *plist)
{
    CB_ENTER_NVML();
    if (plist == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlProcessDetailList_t request = *plist;
    unsigned int kept = 0, capacity = request.procArray != NULL ? request.numProcArrayEntries : 0;
    nvmlProcessDetail_v1_t *all = calloc(ENTRIES_MAX, sizeof(*all));
    if (all == NULL) return NVML_ERROR_MEMORY;
    request.numProcArrayEntries = ENTRIES_MAX;
    request.procArray = all;
    nvmlReturn_t result = CB_REAL(nvmlDeviceGetRunningProcessDetailList)(device, &request);
    if (result == NVML_SUCCESS) {
        KEEP_OURS(all, request.numProcArrayEntries, kept)
        HAND_OVER(kept, all, capacity, plist->procArray, &plist->numProcArrayEntries);
    }
    free(all);
    return result;
}

/* The time one second ago, by the real-time clock in microseconds, as NVML counts. */
static unsigned long long one_second_ago_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)(now.tv_sec - 1) * 1000000u + (unsigned long long)now.tv_nsec / 1000u;
}

/*
 * Utilization by the processes of the slice in the last second, in percent: the sum over them of the mean of
 * their samples.
 */
static nvmlReturn_t slice_utilization(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    unsigned int found = ENTRIES_MAX, kept = 0;
    nvmlProcessUtilizationSample_t *all = calloc(found, sizeof(*all));
    if (all == NULL) return NVML_ERROR_MEMORY;
    nvmlReturn_t result = CB_REAL(nvmlDeviceGetProcessUtilization)(device, all, &found, one_second_ago_us());
    double sm = 0, memory = 0;
    if (result == NVML_SUCCESS) KEEP_OURS(all, found, kept)
    for (unsigned int i = 0; i < kept; i++) {
        unsigned int samples = 0;
        for (unsigned int k = 0; k < kept; k++)
            samples += all[k].pid == all[i].pid;
        sm += (double)all[i].smUtil / samples;
        memory += (double)all[i].memUtil / samples;
    }
    free(all);
    if (result != NVML_SUCCESS && result != NVML_ERROR_NOT_FOUND) return result;
    utilization->gpu = sm < 100 ? (unsigned int)(sm + 0.5) : 100;
    utilization->memory = memory < 100 ? (unsigned int)(memory + 0.5) : 100;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    CB_ENTER_NVML();
    nvmlReturn_t result = CB_REAL(nvmlDeviceGetUtilizationRates)(device, utilization);
    if (result != NVML_SUCCESS || cb_device_charged(cb_device_of_nvml(device)) < 0) return result;
    nvmlReturn_t own = slice_utilization(device, utilization);
    return own == NVML_ERROR_NOT_SUPPORTED || own == NVML_ERROR_FUNCTION_NOT_FOUND ? result : own;
}
