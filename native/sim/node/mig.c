/* Names and figures of compute instances. */
#include "sim/node/mig.h"

#include "sim/node/build.h"

#include <stdio.h>

bool sim_ci_name(const struct sim_device *d, const struct sim_ci *ci, char *out, size_t size)
{
    const struct card *card = card_of(d);
    const struct sim_gi *g = &d->mig.gi[ci->gi_id % SIM_GI_MAX];

    for (uint32_t i = 0; card != NULL && i < card->mig_count; i++) {
        if (card->mig[i].nvml_enum != g->profile) continue;
        if (ci->slice_count == g->slice_count)
            snprintf(out, size, "%s", card->mig[i].name);
        else
            snprintf(out, size, "%uc.%s", ci->slice_count, card->mig[i].name);
        return true;
    }
    return false;
}

uint32_t sim_ci_sm_count(const struct sim_device *d, const struct sim_ci *ci)
{
    const struct sim_gi *g = &d->mig.gi[ci->gi_id % SIM_GI_MAX];

    return g->slice_count ? g->sm_count * ci->slice_count / g->slice_count : 0;
}
