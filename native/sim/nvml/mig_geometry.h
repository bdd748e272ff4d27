/* Geometry of GPU instances and compute instances, shared by the parts of the simulated NVML that speak MIG.
 */
#ifndef CALABASH_SIM_NVML_MIG_GEOMETRY_H
#define CALABASH_SIM_NVML_MIG_GEOMETRY_H

#include "sim/nvml/core.h"

/* Profile by NVML_GPU_INSTANCE_PROFILE_* / by the id that nvidia-smi shows; NULL: this card has none such. */
const struct card_mig *mig_by_enum(const struct card *card, unsigned int nvml_enum);
const struct card_mig *mig_by_id(const struct card *card, unsigned int id);

/* Whether a profile's instances may ever start at this memory slice. */
bool mig_is_legal(const struct card_mig *profile, uint32_t start);

/* Whether an instance of this profile may start at this memory slice now. The caller holds the device's lock.
 */
bool mig_fits(const struct nv_target *t, const struct card_mig *profile, uint32_t start);

/* How many more instances of this profile the driver's own placement (lowest legal start first) would reach.
 */
unsigned int mig_capacity(const struct nv_target *t, const struct card_mig *profile);

/* Compute slices of a compute instance profile, 0: none such in this GPU instance. */
uint32_t mig_ci_slices(const struct sim_gi *gi, unsigned int ci_profile);

/* The free place for a compute instance of `size` slices: `wanted` if it is not UINT32_MAX, else the lowest.
 * UINT32_MAX: none. The caller holds the device's lock. */
uint32_t mig_ci_start(const struct nv_target *t, uint32_t size, uint32_t wanted);

#endif
