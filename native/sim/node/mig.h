/* Description of a compute instance, as NVML and CUDA both report it. */
#ifndef CALABASH_SIM_MIG_H
#define CALABASH_SIM_MIG_H

#include "sim/node/state.h"

/*
 * Its name: "3g.20gb", or "1c.3g.20gb" if it has one of three compute slices of its GPU instance. Return false
 * if its GPU instance has no profile of this card.
 */
bool sim_ci_name(const struct sim_device *d, const struct sim_ci *ci, char *out, size_t size);

/* Its share of the multiprocessors of its GPU instance. */
static inline uint32_t sim_ci_sm_count(const struct sim_device *d, const struct sim_ci *ci)
{
    const struct sim_gi *g = &d->mig.gi[ci->gi_id % SIM_GI_MAX];
    return g->slice_count ? g->sm_count * ci->slice_count / g->slice_count : 0;
}

/* The profile that a program on it sees: the card's, with the rates and sizes of the instance. */
void sim_ci_profile(const struct sim_device *d, const struct sim_ci *ci, struct sim_profile *out);

#endif
