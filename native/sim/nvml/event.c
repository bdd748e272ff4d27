/*
 * Events: XIDs and memory errors. The state file counts them; a set stores how far it has read. A waiting
 * thread polls every few milliseconds, so a set needs no thread and no descriptor, and does not depend on the
 * process that injected the fault.
 */
#include "sim/nvml/core.h"

#include <stdlib.h>
#include <time.h>

#define POLL_EVERY_NS 20000000ull
#define SUPPORTED                                                                                      \
    (nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError | nvmlEventTypeXidCriticalError | \
     nvmlEventTypePState | nvmlEventTypeClock)

struct watched {
    unsigned long long types;
    uint64_t xid_count, single, twice; /* values already reported */
};

struct nvmlEventSet_st {
    pthread_mutex_t lock;
    struct watched device[SIM_DEVICES_MAX];
};

NVML_API nvmlEventSetCreate(nvmlEventSet_t *set)
{
    if (nv_node() == NULL) return NVML_ERROR_UNINITIALIZED;
    NV_NEED(set);
    *set = calloc(1, sizeof **set);
    if (*set == NULL) return NVML_ERROR_MEMORY;
    pthread_mutex_init(&(*set)->lock, NULL);
    return NVML_SUCCESS;
}

NVML_API nvmlEventSetFree(nvmlEventSet_t set)
{
    if (nv_node() == NULL) return NVML_ERROR_UNINITIALIZED;
    NV_NEED(set);
    pthread_mutex_destroy(&set->lock);
    free(set);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(types);
    *types = SUPPORTED;
    if (!t.device->ecc_mode)
        *types &= ~(unsigned long long)(nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(set);
    if (types & ~(unsigned long long)nvmlEventTypeAll) return NVML_ERROR_INVALID_ARGUMENT;
    if (types & ~(unsigned long long)SUPPORTED) return NVML_ERROR_NOT_SUPPORTED;
    const struct sim_faults *f = &t.device->faults;

    pthread_mutex_lock(&set->lock);
    if (set->device[t.index].types == 0)
        set->device[t.index] = (struct watched){.xid_count = __atomic_load_n(&f->xid_count, __ATOMIC_ACQUIRE),
                                                .single = f->ecc_volatile_sbe,
                                                .twice = f->ecc_volatile_dbe};
    set->device[t.index].types |= types;
    pthread_mutex_unlock(&set->lock);
    return NVML_SUCCESS;
}

/*
 * Advance a counter that may start again at zero; return true if it has grown by one that was not reported yet.
 */
static bool counter_advance(uint64_t *seen, uint64_t now)
{
    if (now < *seen) *seen = now;
    if (now == *seen) return false;
    ++*seen;
    return true;
}

static bool xid_take(struct watched *w, const struct sim_faults *f, nvmlEventData_t *data)
{
    uint64_t count = __atomic_load_n(&f->xid_count, __ATOMIC_ACQUIRE);

    if (count > w->xid_count + SIM_XIDS_MAX)
        w->xid_count = count - SIM_XIDS_MAX; /* older ones are overwritten */
    if (!counter_advance(&w->xid_count, count)) return false;
    const struct sim_xid *x = &f->xid[(w->xid_count - 1) % SIM_XIDS_MAX];
    data->eventData = x->xid;
    data->gpuInstanceId = x->gi;
    data->computeInstanceId = x->ci;
    return true;
}

/* Take the next event of one device; return false if there is none. */
static bool event_take(struct watched *w, const struct sim_faults *f, nvmlEventData_t *data)
{
    data->eventData = 0;
    data->gpuInstanceId = data->computeInstanceId = NVML_NO_INSTANCE;
    if (counter_advance(&w->single, f->ecc_volatile_sbe) && (w->types & nvmlEventTypeSingleBitEccError)) {
        data->eventType = nvmlEventTypeSingleBitEccError;
        return true;
    }
    if (counter_advance(&w->twice, f->ecc_volatile_dbe) && (w->types & nvmlEventTypeDoubleBitEccError)) {
        data->eventType = nvmlEventTypeDoubleBitEccError;
        return true;
    }
    if (xid_take(w, f, data) && (w->types & nvmlEventTypeXidCriticalError)) {
        data->eventType = nvmlEventTypeXidCriticalError;
        return true;
    }
    return false;
}

static bool events_poll(struct sim *s, nvmlEventSet_t set, nvmlEventData_t *data)
{
    bool found = false;

    pthread_mutex_lock(&set->lock);
    for (uint32_t i = 0; i < s->node->device_count && !found; i++) {
        if (set->device[i].types == 0) continue;
        found = event_take(&set->device[i], &s->node->device[i].faults, data);
        if (found) data->device = nv_device_handle(i);
    }
    pthread_mutex_unlock(&set->lock);
    return found;
}

NVML_API nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    struct sim *s = nv_node();

    if (s == NULL) return NVML_ERROR_UNINITIALIZED;
    NV_NEED(set);
    NV_NEED(data);
    uint64_t until = sim_now() + (uint64_t)timeout_ms * 1000000;

    *data = (nvmlEventData_t){0};
    while (!events_poll(s, set, data)) {
        uint64_t now = sim_now();

        if (now >= until) return NVML_ERROR_TIMEOUT;
        uint64_t pause = until - now < POLL_EVERY_NS ? until - now : POLL_EVERY_NS;

        nanosleep(&(struct timespec){.tv_nsec = (long)pause}, NULL);
    }
    return NVML_SUCCESS;
}

/* The first version's structure ends before the MIG fields; pynvml and others pass the full one. */
NVML_API nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    nvmlEventData_t full;

    NV_NEED(data);
    nvmlReturn_t result = nvmlEventSetWait_v2(set, &full, timeout_ms);

    data->device = full.device;
    data->eventType = full.eventType;
    data->eventData = full.eventData;
    return result;
}
