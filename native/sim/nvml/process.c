/*
 * Who uses a card. A process of the node is listed by the PID that the caller's own namespace gives it; one
 * that is not visible there is left out, as the real driver does in containers.
 */
#include "sim/node/slot.h"
#include "sim/nvml/core.h"
#include "sim/nvml/load.h"

#include <string.h>

#define TICKS_MAX (SIM_PROC_TICKS - 1) /* the running tick is not complete */

/* Fills the next entry of a caller's array from one process. */
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

/* The process in a slot as seen from here and by this handle: its PID, or 0. */
static unsigned int visible_pid(const struct nv_target *t, uint32_t slot)
{
    const struct sim_proc *p = &t->sim->node->proc[slot];

    if (__atomic_load_n(&p->state, __ATOMIC_ACQUIRE) != SIM_SLOT_LIVE) return 0;
    if (p->device[t->index].context_count == 0) return 0;
    if (t->mig && (!p->device[t->index].mig_used || p->device[t->index].mig_gi_id != t->gi)) return 0;
    return (unsigned int)sim_process_pid(t->sim, slot);
}

static nvmlReturn_t list(nvmlDevice_t device, unsigned int *count, void *array, put_process put)
{
    NV_TARGET(t, device, NV_CARD | NV_MIG);
    NV_NEED(count);
    unsigned int room = array != NULL ? *count : 0, used = 0;

    nv_refresh(&t);
    for (uint32_t i = 0; i < sim_procs_used(t.sim->node); i++) {
        unsigned int pid = visible_pid(&t, i);

        if (pid == 0) continue;
        if (used < room) put(array, used, pid, &t.sim->node->proc[i].device[t.index]);
        used++;
    }
    *count = used;
    return used > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t list_none(nvmlDevice_t device, unsigned int *count)
{
    NV_TARGET(t, device, NV_CARD | NV_MIG);
    NV_NEED(count);
    *count = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                              nvmlProcessInfo_v1_t *infos)
{
    return list(device, count, infos, put_v1);
}

NVML_API nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                 nvmlProcessInfo_v2_t *infos)
{
    return list(device, count, infos, put_v2);
}

NVML_API nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                 nvmlProcessInfo_t *infos)
{
    return list(device, count, infos, put_v2);
}

/* No simulated process draws, and no MPS daemon runs. */
NVML_API nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                               nvmlProcessInfo_v1_t *infos)
{
    (void)infos;
    return list_none(device, count);
}

NVML_API nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                  nvmlProcessInfo_v2_t *infos)
{
    (void)infos;
    return list_none(device, count);
}

NVML_API nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                  nvmlProcessInfo_t *infos)
{
    (void)infos;
    return list_none(device, count);
}

NVML_API nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                 nvmlProcessInfo_v1_t *infos)
{
    (void)infos;
    return list_none(device, count);
}

NVML_API nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                    nvmlProcessInfo_v2_t *infos)
{
    (void)infos;
    return list_none(device, count);
}

NVML_API nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                    nvmlProcessInfo_t *infos)
{
    (void)infos;
    return list_none(device, count);
}

NVML_API nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *result)
{
    NV_NEED(result);
    if (result->version != nvmlProcessDetailList_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (result->mode != 0) return list_none(device, &result->numProcArrayEntries);
    return list(device, &result->numProcArrayEntries, result->procArray, put_detail);
}

/* Share of the time after `since_ns` in which the process's kernels ran, in percent: whole ticks of 100 ms, at
 * least the last one, at most the 6.3 s that are kept. A sample is stamped with the end of its last tick, so the
 * samples of a reader who hands in the stamp of the last one join without gap or overlap. */
static unsigned int process_percent(const struct sim_proc_device *p, uint64_t now, uint64_t since_ns)
{
    uint64_t last = now / SIM_PROC_TICK_NS, first = (since_ns + SIM_PROC_TICK_NS / 2) / SIM_PROC_TICK_NS,
             busy = 0;

    if (first >= last) first = last - 1;
    if (last - first > TICKS_MAX) first = last - TICKS_MAX;
    for (uint64_t tick = first; tick < last; tick++)
        if (p->tick[tick % SIM_PROC_TICKS] == tick) busy += p->tick_busy_ns[tick % SIM_PROC_TICKS];
    uint64_t percent =
        (busy * 100 + (last - first) * SIM_PROC_TICK_NS / 2) / ((last - first) * SIM_PROC_TICK_NS);

    return percent < 100 ? (unsigned int)percent : 100;
}

/* Where a reader's time stamp lies on the state file's clock; without one, a second ago. */
static uint64_t since(uint64_t now, unsigned long long last_seen_us)
{
    uint64_t offset = nv_realtime_ns() - now, seen = last_seen_us * 1000;

    if (last_seen_us == 0 || seen < offset) return now - NVML_SECOND_NS;
    return seen - offset < now ? seen - offset : now;
}

static unsigned long long tick_end_us(uint64_t now)
{
    return (now / SIM_PROC_TICK_NS * SIM_PROC_TICK_NS + (nv_realtime_ns() - sim_now())) / 1000;
}

NVML_API nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                         unsigned int *count, unsigned long long last_seen_us)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(count);
    unsigned int room = samples != NULL ? *count : 0, used = 0;

    nv_refresh(&t);
    uint64_t now = sim_now(), from = since(now, last_seen_us);

    for (uint32_t i = 0; i < sim_procs_used(t.sim->node); i++) {
        unsigned int pid = visible_pid(&t, i);

        if (pid == 0) continue;
        if (used < room)
            samples[used] = (nvmlProcessUtilizationSample_t){
                .pid = pid,
                .timeStamp = tick_end_us(now),
                .smUtil = process_percent(&t.sim->node->proc[i].device[t.index], now, from),
            };
        used++;
    }
    *count = used;
    if (used == 0) return NVML_ERROR_NOT_FOUND;
    return used > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML_API nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(info);
    if (info->version != nvmlProcessesUtilizationInfo_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    unsigned int room = info->procUtilArray != NULL ? info->processSamplesCount : 0, used = 0;

    nv_refresh(&t);
    uint64_t now = sim_now(), from = since(now, info->lastSeenTimeStamp);

    for (uint32_t i = 0; i < sim_procs_used(t.sim->node); i++) {
        unsigned int pid = visible_pid(&t, i);

        if (pid == 0) continue;
        if (used < room)
            info->procUtilArray[used] = (nvmlProcessUtilizationInfo_v1_t){
                .pid = pid,
                .timeStamp = tick_end_us(now),
                .smUtil = process_percent(&t.sim->node->proc[i].device[t.index], now, from),
            };
        used++;
    }
    info->processSamplesCount = used;
    if (used == 0) return NVML_ERROR_NOT_FOUND;
    return used > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
