/* Utilization of a card, and the figures that depend on it. */
#ifndef CALABASH_SIM_NVML_ACTIVITY_H
#define CALABASH_SIM_NVML_ACTIVITY_H

#include "sim/nvml/core.h"

/* Update a card to the present: completed work, dead processes (about 10 us). */
void nv_refresh(const struct nv_target *target);

/* Share of the last `window_ns` (at most 10 s) in which the card ran kernels / copies, 0..1. */
double nv_busy_ratio(const struct nv_target *target, uint64_t window_ns);
double nv_copy_ratio(const struct nv_target *target, uint64_t window_ns);

uint32_t nv_temperature_c(const struct nv_target *target);
uint32_t nv_power_mw(const struct nv_target *target);
uint64_t nv_energy_mj(const struct nv_target *target);
uint32_t nv_power_limit_mw(const struct nv_target *target);
uint32_t nv_sm_clock_mhz(const struct nv_target *target);

#endif
