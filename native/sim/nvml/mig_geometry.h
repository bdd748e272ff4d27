/* Geometry of GPU instances and compute instances. */
#ifndef CALABASH_SIM_NVML_MIG_GEOMETRY_H
#define CALABASH_SIM_NVML_MIG_GEOMETRY_H

#include "sim/nvml/core.h"

/*
 * Profile by NVML_GPU_INSTANCE_PROFILE_* / by the ID that nvidia-smi shows; NULL: not available on this card.
 */
const struct card_mig *mig_by_enum(const struct card *card, unsigned int nvml_enum);
const struct card_mig *mig_by_id(const struct card *card, unsigned int id);

/* Return true if a profile's instances may start at this memory slice of an empty card. */
bool mig_is_legal(const struct card_mig *profile, uint32_t start);

/* Return true if an instance of this profile may start at this memory slice now. Requires the device's lock. */
bool mig_fits(const struct nv_target *t, const struct card_mig *profile, uint32_t start);

/* Number of further instances of this profile by the driver's own placement (lowest legal start first). */
unsigned int mig_capacity(const struct nv_target *t, const struct card_mig *profile);

/* Compute slices of a compute instance profile; 0: not available in this GPU instance. */
uint32_t mig_ci_slices(const struct sim_gi *gi, unsigned int ci_profile);

/*
 * Start for a compute instance of `size` slices: `wanted` if it is not UINT32_MAX and free, else the lowest
 * free one. UINT32_MAX: none. Requires the device's lock.
 */
uint32_t mig_ci_start(const struct nv_target *t, uint32_t size, uint32_t wanted);

#endif
