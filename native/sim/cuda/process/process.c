/* State of this process as a user of the node: its slot, its devices, and the record of unsupported calls. */
#include "sim/cuda/process/process.h"

#include "sim/node/mps.h"

struct process process = {.lock = PTHREAD_MUTEX_INITIALIZER, .sim = {.fd = -1, .slot = -1}};
__thread int per_thread_default;

CUresult unserved(const char *name)
{
    if (process.ready) sim_count_unserved(&process.sim, name, false);
    return CUDA_ERROR_NOT_SUPPORTED;
}

struct device *device_get(CUdevice device)
{
    return process.ready && device >= 0 && device < process.device_count ? &process.device[device] : NULL;
}

uint32_t device_place(const struct device *d)
{
    return d->ci ? (uint32_t)(d->ci - d->shared->mig.ci) : SIM_NO_INSTANCE;
}

uint32_t device_instance_epoch(const struct device *d)
{
    return d->instance >= 0 ? __atomic_load_n(&d->shared->mig.gi[d->instance].fatal_epoch, __ATOMIC_RELAXED)
                            : 0;
}

uint32_t device_multiprocessors(const struct device *d)
{
    const struct sim_mps *mps = &process.sim.node->proc[process.sim.slot].mps;
    uint32_t all = d->profile->sm_count;
    return mps->role == SIM_MPS_CLIENT ? sim_mps_multiprocessors(all, mps->permille) : all;
}

CUresult device_total(const struct device *d, size_t *bytes)
{
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *bytes = d->instance >= 0 ? d->shared->mig.gi[d->instance].memory_bytes : sim_device_total(d->shared);
    return CUDA_SUCCESS;
}
