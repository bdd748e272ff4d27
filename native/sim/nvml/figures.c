/* Memory, clocks, power, temperature, PCI Express and modes of a card. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/nvml/activity.h"
#include "sim/nvml/core.h"

#include <string.h>
#include <unistd.h>

#define MEMORY_TEMPERATURE_OFFSET_C 6u
/* a wider bus is stacked memory, which has a sensor and never clocks down */
#define HBM_BUS_BITS           1024u
#define BAR1_PER_CONTEXT_BYTES (2ull << 20)
#define THROTTLE_SLOWDOWN      0x8u

NVML_API nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    NV_TARGET(t, device, NV_CARD | NV_MIG);
    NV_NEED(memory);
    if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nv_refresh(&t);
    if (t.mig) {
        const struct sim_gi *g = &t.device->mig.gi[t.gi];

        memory->total = g->memory_bytes;
        memory->reserved = 0;
        memory->used = g->used_bytes < g->memory_bytes ? g->used_bytes : g->memory_bytes;
    } else {
        uint64_t used = __atomic_load_n(&t.device->used_bytes, __ATOMIC_RELAXED);
        uint64_t usable = sim_device_total(t.device);

        memory->total = t.device->profile.memory_total_bytes;
        memory->reserved = t.device->profile.memory_reserved_bytes;
        memory->used = used < usable ? used : usable;
    }
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

/* The first version counts the memory reserved by the driver as used. */
NVML_API nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlMemory_v2_t full = {.version = nvmlMemory_v2};

    NV_NEED(memory);
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo_v2(device, &full);

    if (result != NVML_SUCCESS) return result;
    memory->total = full.total;
    memory->free = full.free;
    memory->used = full.used + full.reserved;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    NV_TARGET(t, device, NV_CARD | NV_MIG);
    NV_NEED(memory);
    uint64_t used = 1ull << 20;

    nv_refresh(&t);
    for (uint32_t i = 0; i < sim_procs_used(t.sim->node); i++)
        if (t.sim->node->proc[i].state == SIM_SLOT_LIVE)
            used += t.sim->node->proc[i].device[t.index].context_count * BAR1_PER_CONTEXT_BYTES;
    memory->bar1Total = t.device->profile.bar1_bytes;
    memory->bar1Used = used < memory->bar1Total ? used : memory->bar1Total;
    memory->bar1Free = memory->bar1Total - memory->bar1Used;
    return NVML_SUCCESS;
}

static nvmlReturn_t clock_mhz(const struct nv_target *t, nvmlClockType_t type, bool maximum,
                              unsigned int *clock)
{
    switch (type) {
    case NVML_CLOCK_GRAPHICS:
    case NVML_CLOCK_SM:
        *clock = maximum ? t->device->profile.sm_clock_max_mhz : nv_sm_clock_mhz(t);
        return NVML_SUCCESS;
    case NVML_CLOCK_MEM:
        *clock = t->device->profile.memory_clock_mhz;
        return NVML_SUCCESS;
    case NVML_CLOCK_VIDEO:
        *clock = t->card->video_clock_mhz;
        return NVML_SUCCESS;
    default:
        return NVML_ERROR_INVALID_ARGUMENT;
    }
}

NVML_API nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(clock);
    return clock_mhz(&t, type, false, clock);
}

NVML_API nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(clock);
    return clock_mhz(&t, type, true, clock);
}

NVML_API nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(clock);
    if (type == NVML_CLOCK_MEM)
        *clock = t.device->profile.memory_clock_mhz;
    else if (type == NVML_CLOCK_GRAPHICS || type == NVML_CLOCK_SM)
        *clock = t.device->app_sm_clock_mhz ? t.device->app_sm_clock_mhz : t.device->profile.sm_clock_mhz;
    else
        return NVML_ERROR_INVALID_ARGUMENT;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(clock);
    *clock = type == NVML_CLOCK_MEM ? t.device->profile.memory_clock_mhz : t.device->profile.sm_clock_mhz;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id, unsigned int *clock)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(clock);
    switch (id) {
    case NVML_CLOCK_ID_CURRENT:
        return clock_mhz(&t, type, false, clock);
    case NVML_CLOCK_ID_CUSTOMER_BOOST_MAX:
        return clock_mhz(&t, type, true, clock);
    default:
        return nvmlDeviceGetApplicationsClock(device, type, clock);
    }
}

NVML_API nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    return nvmlDeviceGetMaxClockInfo(device, type, clock);
}

NVML_API nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count, unsigned int *clocks)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(count);
    unsigned int capacity = *count;

    *count = 1;
    if (clocks == NULL || capacity < 1) return NVML_ERROR_INSUFFICIENT_SIZE;
    clocks[0] = t.device->profile.memory_clock_mhz;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory_clock,
                                              unsigned int *count, unsigned int *clocks)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(count);
    if (memory_clock != t.device->profile.memory_clock_mhz) return NVML_ERROR_NOT_FOUND;
    unsigned int top = t.device->profile.sm_clock_max_mhz, low = t.card->idle_clock_mhz;
    unsigned int have = (top - low) / 15 + 1, capacity = *count; /* steps of 15 MHz, from the highest down */

    *count = have;
    if (clocks == NULL || capacity < have) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < have; i++)
        clocks[i] = top - 15 * i;
    return NVML_SUCCESS;
}

static nvmlReturn_t set_sm_clock(nvmlDevice_t device, unsigned int clock)
{
    NV_TARGET(t, device, NV_CARD);
    if (geteuid() != 0) return NVML_ERROR_NO_PERMISSION;
    if (clock != 0 && (clock < t.card->idle_clock_mhz || clock > t.device->profile.sm_clock_max_mhz))
        return NVML_ERROR_INVALID_ARGUMENT;
    __atomic_store_n(&t.device->app_sm_clock_mhz, clock, __ATOMIC_RELAXED);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned int memory_clock,
                                         unsigned int graphics_clock)
{
    (void)memory_clock;
    return graphics_clock ? set_sm_clock(device, graphics_clock) : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API nvmlDeviceResetApplicationsClocks(nvmlDevice_t device)
{
    return set_sm_clock(device, 0);
}

NVML_API nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int least, unsigned int most)
{
    if (least > most || most == 0) return NVML_ERROR_INVALID_ARGUMENT;
    return set_sm_clock(device, most);
}

NVML_API nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
    return set_sm_clock(device, 0);
}

NVML_API nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(reasons);
    *reasons = t.device->faults.throttle_reasons;
    if (t.device->faults.slow_permille > 1000) *reasons |= THROTTLE_SLOWDOWN;
    if (*reasons == 0 && nv_busy_ratio(&t, NVML_SECOND_NS) <= 0.0) *reasons = nvmlClocksEventReasonGpuIdle;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

NVML_API nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(reasons);
    *reasons = nvmlClocksEventReasonAll;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return nvmlDeviceGetSupportedClocksEventReasons(device, reasons);
}

NVML_API nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t *state)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(state);
    bool stacked = t.device->profile.memory_bus_bits >= HBM_BUS_BITS;

    *state = stacked || nv_busy_ratio(&t, NVML_SECOND_NS) > 0.0 ? NVML_PSTATE_0 : NVML_PSTATE_8;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetPowerState(nvmlDevice_t device, nvmlPstates_t *state)
{
    return nvmlDeviceGetPerformanceState(device, state);
}

NVML_API nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(power);
    *power = nv_power_mw(&t);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *energy)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(energy);
    if (t.device->profile.architecture < NVML_DEVICE_ARCH_VOLTA) return NVML_ERROR_NOT_SUPPORTED;
    *energy = nv_energy_mj(&t);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(mode);
    *mode = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *limit)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(limit);
    *limit = nv_power_limit_mw(&t);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *limit)
{
    return nvmlDeviceGetPowerManagementLimit(device, limit);
}

NVML_API nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *limit)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(limit);
    *limit = t.device->profile.power_limit_mw;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *least,
                                                      unsigned int *most)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(least);
    NV_NEED(most);
    *least = t.device->profile.power_limit_min_mw;
    *most = t.device->profile.power_limit_max_mw;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int limit)
{
    NV_TARGET(t, device, NV_CARD);
    if (geteuid() != 0) return NVML_ERROR_NO_PERMISSION;
    if (limit < t.device->profile.power_limit_min_mw || limit > t.device->profile.power_limit_max_mw)
        return NVML_ERROR_INVALID_ARGUMENT;
    __atomic_store_n(&t.device->power_limit_mw, limit, __ATOMIC_RELAXED);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                  unsigned int *temperature)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(temperature);
    if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
    *temperature = nv_temperature_c(&t);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(temperature);
    if (temperature->version != nvmlTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (temperature->sensorType != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
    temperature->temperature = (int)nv_temperature_c(&t);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *margin)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(margin);
    if (margin->version != nvmlMarginTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    margin->marginTemperature = (int)t.device->profile.temperature_slowdown_c - (int)nv_temperature_c(&t);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t type,
                                           unsigned int *temperature)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(temperature);
    const struct sim_profile *p = &t.device->profile;

    switch (type) {
    case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN:
        *temperature = p->temperature_shutdown_c;
        return NVML_SUCCESS;
    case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN:
        *temperature = p->temperature_slowdown_c;
        return NVML_SUCCESS;
    case NVML_TEMPERATURE_THRESHOLD_GPU_MAX:
        *temperature = p->temperature_slowdown_c - 2;
        return NVML_SUCCESS;
    case NVML_TEMPERATURE_THRESHOLD_MEM_MAX:
        if (p->memory_bus_bits < HBM_BUS_BITS) return NVML_ERROR_NOT_SUPPORTED;
        *temperature = p->temperature_slowdown_c + MEMORY_TEMPERATURE_OFFSET_C;
        return NVML_SUCCESS;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

NVML_API nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned int *fans)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(fans);
    *fans = 0; /* all these cards are cooled by their server */
    return NVML_SUCCESS;
}
