/* Charging of device memory to processes. */
#ifndef CALABASH_SIM_CHARGE_H
#define CALABASH_SIM_CHARGE_H

#include "sim/node/state.h"

/*
 * Charge `bytes` to this process on `device`; `context`: it is the cost of a context. Return false if the card
 * is full (or a failure was injected), after a sweep. sim_refund undoes it.
 */
bool sim_charge(struct sim *s, uint32_t device, uint64_t bytes, bool context);
void sim_refund(struct sim *s, uint32_t device, uint64_t bytes, bool context);

/*
 * Return false if the compute instance with which this process began was destroyed, or its card was partitioned
 * since.
 */
bool sim_instance_is_valid(struct sim *s, uint32_t device);

#endif
