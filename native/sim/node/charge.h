/* What processes hold of the memory of cards. */
#ifndef CALABASH_SIM_CHARGE_H
#define CALABASH_SIM_CHARGE_H

#include "sim/node/state.h"

/* Charge `bytes` to this process on `device`; `context` says it is the cost of a context. False when the card
 * (or an injected failure) has no room; a sweep is tried before that answer. sim_refund undoes it. */
bool sim_charge(struct sim *s, uint32_t device, uint64_t bytes, bool context);
void sim_refund(struct sim *s, uint32_t device, uint64_t bytes, bool context);

/* False when the compute instance that this process began with has been destroyed, or its card divided since. */
bool sim_has_place(struct sim *s, uint32_t device);

#endif
