/*
 * Geometry of MIG. A GPU instance takes consecutive memory slices from one of its profile's legal starts on,
 * and a number of the card's compute slices, wherever they are; at most one instance has the media engines. A
 * compute instance takes compute slices of its GPU instance, from a multiple of its own size on.
 */
#include "sim/nvml/mig_geometry.h"

const struct card_mig *mig_by_enum(const struct card *card, unsigned int nvml_enum)
{
    for (uint32_t i = 0; i < card->mig_count; i++)
        if (card->mig[i].nvml_enum == nvml_enum) return &card->mig[i];
    return NULL;
}

const struct card_mig *mig_by_id(const struct card *card, unsigned int id)
{
    for (uint32_t i = 0; i < card->mig_count; i++)
        if (card->mig[i].id == id) return &card->mig[i];
    return NULL;
}

/*
 * Resources of a card in use: a bit for each memory slice, the number of compute slices, the media engines,
 * instances.
 */
struct taken {
    uint32_t memory;
    uint32_t compute;
    uint32_t same;
    bool media;
};

static uint32_t slice_mask(uint32_t start, uint32_t size)
{
    return ((1u << size) - 1) << start;
}

static struct taken resources_in_use(const struct nv_target *t, const struct card_mig *profile)
{
    struct taken taken = {0};

    for (uint32_t i = 0; i < SIM_GI_MAX; i++) {
        const struct sim_gi *g = &t->device->mig.gi[i];

        if (!g->used) continue;
        taken.memory |= slice_mask(g->slice_start & 7, g->memory_slices & 15);
        taken.compute += g->slice_count;
        taken.media |= g->media != 0;
        taken.same += g->profile == profile->nvml_enum;
    }
    return taken;
}

bool mig_is_legal(const struct card_mig *profile, uint32_t start)
{
    for (uint32_t i = 0; i < profile->start_count; i++)
        if (profile->starts[i] == start) return true;
    return false;
}

static bool instance_fits(const struct card *card, const struct taken *taken, const struct card_mig *profile,
                          uint32_t start)
{
    return mig_is_legal(profile, start) && !(taken->memory & slice_mask(start, profile->size)) &&
           taken->compute + profile->slices <= card->mig_slices && taken->same < profile->max_count &&
           !(profile->media && taken->media);
}

bool mig_fits(const struct nv_target *t, const struct card_mig *profile, uint32_t start)
{
    struct taken taken = resources_in_use(t, profile);

    return instance_fits(t->card, &taken, profile, start);
}

unsigned int mig_capacity(const struct nv_target *t, const struct card_mig *profile)
{
    struct taken taken = resources_in_use(t, profile);
    unsigned int count = 0;

    for (uint32_t i = 0; i < profile->start_count; i++) {
        if (!instance_fits(t->card, &taken, profile, profile->starts[i])) continue;
        taken.memory |= slice_mask(profile->starts[i], profile->size);
        taken.compute += profile->slices;
        taken.media |= profile->media != 0;
        taken.same++;
        count++;
    }
    return count;
}

uint32_t mig_ci_slices(const struct sim_gi *gi, unsigned int ci_profile)
{
    static const uint32_t slices[] = {1, 2, 3, 4, 7, 8, 6};

    if (ci_profile >= sizeof slices / sizeof slices[0] || slices[ci_profile] > gi->slice_count) return 0;
    return slices[ci_profile];
}

uint32_t mig_ci_start(const struct nv_target *t, uint32_t size, uint32_t wanted)
{
    const struct sim_mig *m = &t->device->mig;
    uint32_t slices = m->gi[t->gi].slice_count, used = 0;

    for (uint32_t i = 0; i < SIM_CI_MAX; i++)
        if (m->ci[i].used && m->ci[i].gi_id == m->gi[t->gi].id)
            used |= slice_mask(m->ci[i].slice_start & 7, m->ci[i].slice_count & 15);
    for (uint32_t start = 0; start + size <= slices; start += size) {
        if (used & slice_mask(start, size)) continue;
        if (wanted == UINT32_MAX || wanted == start) return start;
    }
    return UINT32_MAX;
}
