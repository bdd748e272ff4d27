/*
 * Processes that use a card. A process of the node is listed by its PID in the caller's namespace; one that is
 * not visible there is left out, as by the real driver in containers.
 */
#include "sim/node/mps.h"
#include "sim/node/slot.h"
#include "sim/nvml/activity.h"
#include "sim/nvml/core.h"

#include <string.h>

/* Fill the next entry of a caller's array from one process. */
typedef void (*put_process)(void *array, unsigned int index, unsigned int pid,
                            const struct sim_proc_device *p);

static void put_v1(void *array, unsigned int index, unsigned int pid, const struct sim_proc_device *p)
{
    nvmlProcessInfo_v1_t *info = (nvmlProcessInfo_v1_t *)array + index;

    info->pid = pid;
    info->usedGpuMemory = p->alloc_bytes + p->context_bytes;
}

static void put_v2(void *array, unsigned int index, unsigned int pid, const struct sim_proc_device *p)
{
    nvmlProcessInfo_v2_t *info = (nvmlProcessInfo_v2_t *)array + index;

    info->pid = pid;
    info->usedGpuMemory = p->alloc_bytes + p->context_bytes;
    info->gpuInstanceId = p->mig_used ? p->mig_gi_id : NVML_NO_INSTANCE;
    info->computeInstanceId = p->mig_used ? p->mig_ci_id : NVML_NO_INSTANCE;
}

static void put_detail(void *array, unsigned int index, unsigned int pid, const struct sim_proc_device *p)
{
    nvmlProcessDetail_v1_t *info = (nvmlProcessDetail_v1_t *)array + index;

    memset(info, 0, sizeof *info);
    info->pid = pid;
    info->usedGpuMemory = p->alloc_bytes + p->context_bytes;
    info->gpuInstanceId = p->mig_used ? p->mig_gi_id : NVML_NO_INSTANCE;
    info->computeInstanceId = p->mig_used ? p->mig_ci_id : NVML_NO_INSTANCE;
}

/* PID of the process in a slot as visible to the caller and through this handle, or 0. */
static unsigned int visible_pid(const struct nv_target *t, uint32_t slot)
{
    const struct sim_proc *p = &t->sim->node->proc[slot];
    const struct sim_proc_device *d = &p->device[t->index];

    if (__atomic_load_n(&p->state, __ATOMIC_ACQUIRE) != SIM_SLOT_LIVE) return 0;
    if (d->context_count == 0) return 0;
    if (t->mig && (!d->mig_used || d->mig_gi_id != t->gi || d->mig_ci_id != t->device->mig.ci[t->ci].id))
        return 0;
    return (unsigned int)sim_process_pid(t->sim, slot);
}

static nvmlReturn_t processes_list(nvmlDevice_t device, unsigned int *count, void *array, put_process put,
                                   bool clients)
{
    NV_TARGET(t, device, NV_CARD | NV_MIG);
    NV_NEED(count);
    unsigned int capacity = array != NULL ? *count : 0, used = 0;

    nv_refresh(&t);
    for (uint32_t i = 0; i < sim_procs_used(t.sim->node); i++) {
        unsigned int pid = visible_pid(&t, i);

        if (pid == 0 || (clients && !sim_mps_is_client(t.sim->node, i, UINT32_MAX))) continue;
        if (used < capacity) put(array, used, pid, &t.sim->node->proc[i].device[t.index]);
        used++;
    }
    *count = used;
    return used > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t processes_list_none(nvmlDevice_t device, unsigned int *count)
{
    NV_TARGET(t, device, NV_CARD | NV_MIG);
    NV_NEED(count);
    *count = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                              nvmlProcessInfo_v1_t *infos)
{
    return processes_list(device, count, infos, put_v1, false);
}

NVML_API nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                 nvmlProcessInfo_v2_t *infos)
{
    return processes_list(device, count, infos, put_v2, false);
}

NVML_API nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                 nvmlProcessInfo_t *infos)
{
    return processes_list(device, count, infos, put_v2, false);
}

/* No simulated process uses graphics. */
NVML_API nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                               nvmlProcessInfo_v1_t *infos)
{
    (void)infos;
    return processes_list_none(device, count);
}

NVML_API nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                  nvmlProcessInfo_v2_t *infos)
{
    (void)infos;
    return processes_list_none(device, count);
}

NVML_API nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                  nvmlProcessInfo_t *infos)
{
    (void)infos;
    return processes_list_none(device, count);
}

/* Clients of the multi-process service are in both lists ("M+C"), its server only in the list of all ("C"). */
NVML_API nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                 nvmlProcessInfo_v1_t *infos)
{
    return processes_list(device, count, infos, put_v1, true);
}

NVML_API nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                    nvmlProcessInfo_v2_t *infos)
{
    return processes_list(device, count, infos, put_v2, true);
}

NVML_API nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                    nvmlProcessInfo_t *infos)
{
    return processes_list(device, count, infos, put_v2, true);
}

NVML_API nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *result)
{
    NV_NEED(result);
    if (result->version != nvmlProcessDetailList_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (result->mode == 2)
        return processes_list(device, &result->numProcArrayEntries, result->procArray, put_detail, true);
    if (result->mode != 0) return processes_list_none(device, &result->numProcArrayEntries);
    return processes_list(device, &result->numProcArrayEntries, result->procArray, put_detail, false);
}
