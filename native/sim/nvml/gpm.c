/*
 * GPM: utilization of a card, or of one GPU instance of it, between two samples. From Hopper on, as on real
 * cards. Two metrics are supported, both the share of the time in which it worked.
 */
#include "sim/nvml/activity.h"
#include "sim/nvml/core.h"

#include <stdlib.h>

#define GPM_MAGIC      0x314D5047u /* "GPM1" */
#define GPM_METRICS    (unsigned int)NVML_GPM_METRIC_MAX
#define COMPUTE_HOPPER 9u

struct nvmlGpmSample_st {
    uint32_t magic, taken, device, gi;
    uint64_t at_ns, busy_ns;
};

static bool is_sample(const struct nvmlGpmSample_st *sample)
{
    return sample != NULL && sample->magic == GPM_MAGIC;
}

static bool is_supported(const struct nv_target *t)
{
    return t->device->profile.compute_major >= COMPUTE_HOPPER;
}

NVML_API nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(support);
    if (support->version != NVML_GPM_SUPPORT_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = is_supported(&t);
    return NVML_SUCCESS;
}

NVML_API nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    NV_NEED(sample);
    *sample = calloc(1, sizeof **sample);
    if (*sample == NULL) return NVML_ERROR_MEMORY;
    (*sample)->magic = GPM_MAGIC;
    return NVML_SUCCESS;
}

NVML_API nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    if (!is_sample(sample)) return NVML_ERROR_INVALID_ARGUMENT;
    sample->magic = 0;
    free(sample);
    return NVML_SUCCESS;
}

static nvmlReturn_t sample_take(const struct nv_target *t, uint32_t gi, nvmlGpmSample_t sample)
{
    if (!is_sample(sample)) return NVML_ERROR_INVALID_ARGUMENT;
    if (!is_supported(t)) return NVML_ERROR_NOT_SUPPORTED;
    nv_refresh(t);
    sample->taken = 1;
    sample->device = t->index;
    sample->gi = gi;
    sample->at_ns = sim_now();
    sample->busy_ns =
        gi == NVML_NO_INSTANCE ? t->device->engine.busy_ns : t->device->mig.busy_ns[gi % SIM_GI_MAX];
    return NVML_SUCCESS;
}

NVML_API nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    NV_TARGET(t, device, NV_CARD);
    return sample_take(&t, NVML_NO_INSTANCE, sample);
}

NVML_API nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gi, nvmlGpmSample_t sample)
{
    NV_TARGET(t, device, NV_CARD);
    if (gi >= SIM_GI_MAX || !t.device->mig.gi[gi].used) return NVML_ERROR_INVALID_ARGUMENT;
    return sample_take(&t, gi, sample);
}

NVML_API nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *asked)
{
    NV_NEED(asked);
    if (asked->version != NVML_GPM_METRICS_GET_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct nvmlGpmSample_st *a = asked->sample1, *b = asked->sample2;

    if (!is_sample(a) || !is_sample(b) || !a->taken || !b->taken || a->device != b->device ||
        a->gi != b->gi || b->at_ns <= a->at_ns || asked->numMetrics > GPM_METRICS)
        return NVML_ERROR_INVALID_ARGUMENT;
    double percent = 100.0 * (double)(b->busy_ns - a->busy_ns) / (double)(b->at_ns - a->at_ns);

    for (unsigned int i = 0; i < asked->numMetrics; i++) {
        nvmlGpmMetric_t *m = &asked->metrics[i];

        m->nvmlReturn = m->metricId == NVML_GPM_METRIC_GRAPHICS_UTIL || m->metricId == NVML_GPM_METRIC_SM_UTIL
                            ? NVML_SUCCESS
                            : NVML_ERROR_NOT_SUPPORTED;
        m->value = m->nvmlReturn == NVML_SUCCESS ? (percent < 100.0 ? percent : 100.0) : 0.0;
    }
    return NVML_SUCCESS;
}
