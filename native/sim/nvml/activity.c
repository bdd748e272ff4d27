/*
 * Utilization of a card, and the figures that depend on it.
 *
 * The state file keeps ten seconds of busy time in ticks of 20 ms. Utilization is busy time over the last
 * second; power follows the last fifth of a second; temperature is an exponential mean with a time constant of
 * four seconds, so that it rises and falls smoothly between the card's idle and full-load figures. Nothing is
 * stored here: two readers at the same time read the same.
 */
#include "sim/nvml/activity.h"

#include "sim/node/engine.h"
#include "sim/node/slot.h"

#include <math.h>

#define POWER_WINDOW_NS 200000000ull
#define THERMAL_TAU_NS  4000000000.0
#define PERCENT(ratio)  ((unsigned int)((ratio) * 100.0 + 0.5))

void nv_refresh(const struct nv_target *t)
{
    sim_sweep(t->sim, 0);
    sim_lock_device(t->sim, t->index);
    engine_advance_all(t->sim, t->index, sim_now());
    sim_unlock_device(t->sim, t->index);
}

/* Busy time over the full ticks of a window, each weighted by `decay` to the power of its age. */
static double weighted_busy_time(const struct nv_target *t, uint64_t window_ns, double decay, bool copies)
{
    const struct sim_history *h = &t->device->engine.history;
    uint64_t ticks = window_ns / SIM_TICK_NS;
    double busy = 0.0, all = 0.0, weight = 1.0;

    if (ticks == 0) ticks = 1;
    if (ticks >= SIM_HISTORY_TICKS) ticks = SIM_HISTORY_TICKS - 1;
    sim_lock_device(t->sim, t->index);
    uint64_t now = sim_now();

    engine_advance_all(t->sim, t->index, now);
    for (uint64_t age = 1; age <= ticks && age <= now / SIM_TICK_NS; age++, weight *= decay) {
        uint64_t tick = now / SIM_TICK_NS - age, i = tick % SIM_HISTORY_TICKS;

        all += weight * (double)SIM_TICK_NS;
        if (h->tick[i] == tick) busy += weight * (double)(copies ? h->copy_ns[i] : h->busy_ns[i]);
    }
    sim_unlock_device(t->sim, t->index);
    return all > 0.0 ? fmin(busy / all, 1.0) : 0.0;
}

double nv_busy_ratio(const struct nv_target *t, uint64_t window_ns)
{
    return weighted_busy_time(t, window_ns, 1.0, false);
}

double nv_copy_ratio(const struct nv_target *t, uint64_t window_ns)
{
    return weighted_busy_time(t, window_ns, 1.0, true);
}

uint32_t nv_temperature_c(const struct nv_target *t)
{
    const struct card *c = t->card;

    if (t->device->faults.temperature_c) return t->device->faults.temperature_c;
    double warm = weighted_busy_time(t, SIM_HISTORY_TICKS * SIM_TICK_NS,
                                     exp(-(double)SIM_TICK_NS / THERMAL_TAU_NS), false);

    return c->idle_c + (uint32_t)((double)(c->full_c - c->idle_c) * warm + 0.5);
}

uint32_t nv_power_limit_mw(const struct nv_target *t)
{
    uint32_t set = t->device->power_limit_mw;

    return set ? set : t->device->profile.power_limit_mw;
}

uint32_t nv_power_mw(const struct nv_target *t)
{
    double idle = t->device->profile.power_idle_mw, limit = nv_power_limit_mw(t);

    return (uint32_t)(idle + (limit - idle) * nv_busy_ratio(t, POWER_WINDOW_NS));
}

uint64_t nv_energy_mj(const struct nv_target *t)
{
    const struct sim_profile *p = &t->device->profile;
    uint64_t born = t->sim->node->created_ns, now = nv_realtime_ns();
    double alive_s = now > born ? (double)(now - born) / 1e9 : 0.0;

    nv_refresh(t);
    return t->device->energy_base_mj +
           (uint64_t)(p->power_idle_mw * alive_s + (double)(p->power_limit_mw - p->power_idle_mw) *
                                                       (double)t->device->engine.busy_ns / 1e9);
}

uint32_t nv_sm_clock_mhz(const struct nv_target *t)
{
    const struct sim_device *d = t->device;

    if (nv_busy_ratio(t, POWER_WINDOW_NS) <= 0.0) return t->card->idle_clock_mhz;
    if (d->faults.throttle_reasons) return d->profile.sm_clock_mhz;
    return d->app_sm_clock_mhz ? d->app_sm_clock_mhz : d->profile.sm_clock_max_mhz;
}

NVML_API nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(utilization);
    if (t.device->mig.mode) return NVML_ERROR_NOT_SUPPORTED; /* as on real cards */
    utilization->gpu = PERCENT(nv_busy_ratio(&t, NVML_SECOND_NS));
    utilization->memory = PERCENT(nv_copy_ratio(&t, NVML_SECOND_NS));
    return NVML_SUCCESS;
}

/* Encoders and decoders are never busy here; cards without them return an error. */
static nvmlReturn_t idle_engine_utilization(nvmlDevice_t device, unsigned int *utilization,
                                            unsigned int *period_us)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(utilization);
    NV_NEED(period_us);
    *utilization = 0;
    *period_us = 200000;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *utilization,
                                         unsigned int *period_us)
{
    return idle_engine_utilization(device, utilization, period_us);
}

NVML_API nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *utilization,
                                         unsigned int *period_us)
{
    return idle_engine_utilization(device, utilization, period_us);
}

NVML_API nvmlDeviceGetJpgUtilization(nvmlDevice_t device, unsigned int *utilization, unsigned int *period_us)
{
    return idle_engine_utilization(device, utilization, period_us);
}

NVML_API nvmlDeviceGetOfaUtilization(nvmlDevice_t device, unsigned int *utilization, unsigned int *period_us)
{
    return idle_engine_utilization(device, utilization, period_us);
}

static unsigned int sample_value(const struct nv_target *t, nvmlSamplingType_t type, uint64_t tick)
{
    const struct sim_history *h = &t->device->engine.history;
    uint64_t i = tick % SIM_HISTORY_TICKS;
    double busy = h->tick[i] == tick ? (double)h->busy_ns[i] / (double)SIM_TICK_NS : 0.0;
    double copy = h->tick[i] == tick ? (double)h->copy_ns[i] / (double)SIM_TICK_NS : 0.0;
    const struct sim_profile *p = &t->device->profile;

    switch (type) {
    case NVML_TOTAL_POWER_SAMPLES:
        return p->power_idle_mw + (unsigned int)((p->power_limit_mw - p->power_idle_mw) * busy);
    case NVML_GPU_UTILIZATION_SAMPLES:
        return PERCENT(fmin(busy, 1.0));
    case NVML_MEMORY_UTILIZATION_SAMPLES:
        return PERCENT(fmin(copy, 1.0));
    case NVML_PROCESSOR_CLK_SAMPLES:
        return busy > 0.0 ? p->sm_clock_max_mhz : t->card->idle_clock_mhz;
    case NVML_MEMORY_CLK_SAMPLES:
        return p->memory_clock_mhz;
    default:
        return 0;
    }
}

NVML_API nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long last_seen_us,
                              nvmlValueType_t *value_type, unsigned int *count, nvmlSample_t *samples)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(value_type);
    NV_NEED(count);
    if (type > NVML_MEMORY_CLK_SAMPLES) return NVML_ERROR_NOT_SUPPORTED;
    nv_refresh(&t);
    uint64_t now = sim_now(), offset = nv_realtime_ns() - now, last = now / SIM_TICK_NS - 1;
    uint64_t kept = SIM_HISTORY_TICKS - 2 < last ? SIM_HISTORY_TICKS - 2 : last;
    unsigned int used = 0;

    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    for (uint64_t tick = last - kept + 1; tick <= last; tick++) {
        unsigned long long stamp_us = ((tick + 1) * SIM_TICK_NS + offset) / 1000;

        if (stamp_us <= last_seen_us) continue;
        if (samples != NULL) {
            if (used >= *count) break;
            samples[used].timeStamp = stamp_us;
            samples[used].sampleValue.uiVal = sample_value(&t, type, tick);
        }
        used++;
    }
    *count = used;
    return used > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
