/* Names and figures of compute instances. */
#include "sim/node/mig.h"

#include "sim/node/device_build.h"

#include <cuda.h>
#include <stdio.h>

static const struct card_mig *profile_of(const struct card *card, const struct sim_gi *g)
{
    for (uint32_t i = 0; card != NULL && i < card->mig_count; i++)
        if (card->mig[i].nvml_enum == g->profile) return &card->mig[i];
    return NULL;
}

bool sim_ci_name(const struct sim_device *d, const struct sim_ci *ci, char *out, size_t size)
{
    const struct card *card = card_of(d);
    const struct sim_gi *g = &d->mig.gi[ci->gi_id % SIM_GI_MAX];

    const struct card_mig *p = profile_of(card, g);

    if (p == NULL) return false;
    if (ci->slice_count == g->slice_count)
        snprintf(out, size, "%s", p->name);
    else
        snprintf(out, size, "%uc.%s", ci->slice_count, p->name);
    return true;
}

/* Memory slices that a card of this model has: those of its largest instance. */
static uint32_t memory_slices(const struct card *card)
{
    uint32_t most = 1;

    for (uint32_t i = 0; i < card->mig_count; i++)
        if (card->mig[i].size > most) most = card->mig[i].size;
    return most;
}

void sim_ci_profile(const struct sim_device *d, const struct sim_ci *ci, struct sim_profile *out)
{
    const struct card *card = card_of(d);
    const struct sim_gi *g = &d->mig.gi[ci->gi_id % SIM_GI_MAX];
    const struct card_mig *p = profile_of(card, g);

    *out = d->profile;
    if (p == NULL || d->profile.sm_count == 0) return;
    uint32_t slices = memory_slices(card);

    out->sm_count = sim_ci_sm_count(d, ci);
    out->flops_fp32 = d->profile.flops_fp32 * out->sm_count / d->profile.sm_count;
    out->memory_bandwidth_bps = d->profile.memory_bandwidth_bps * g->memory_slices / slices;
    out->memory_bus_bits = d->profile.memory_bus_bits * g->memory_slices / slices;
    out->l2_bytes = (uint32_t)((uint64_t)d->profile.l2_bytes * g->memory_slices / slices);
    out->attribute[CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT] = (int32_t)p->copy_engines;
    out->attribute[CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE] = (int32_t)(out->l2_bytes / 4 * 3);
}
