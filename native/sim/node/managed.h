/*
 * Residency of managed memory: on the card as long as there is space, on the host if others need the space.
 *
 * An allocation is on the card at once, as far as the card has space. Work that touches it brings in what is
 * missing before it runs, at the speed of the card's link; the least recently used is evicted for that, which
 * costs the link as much again, because what was on the card is written back. What work touches and the card
 * cannot hold passes through it each time. Memory that was never written moves at no cost.
 */
#ifndef CALABASH_SIM_MANAGED_H
#define CALABASH_SIM_MANAGED_H

#include "sim/node/state.h"

#define MANAGED_ESTIMATE UINT64_MAX

/* Track an allocation of this process; return false if the table is full or the process has lost the card. */
bool managed_add(struct sim *s, uint32_t device, uint64_t bytes, struct sim_touch *out);
void managed_remove(struct sim *s, uint32_t device, const struct sim_touch *at);
/* The program has written so much of it from the host's side. */
void managed_written(struct sim *s, uint32_t device, const struct sim_touch *at);

/*
 * For the engine; requires the device's lock. Bring in what work touches at `now_ns`, and return how long it
 * takes. MANAGED_ESTIMATE: change nothing, and return an estimate.
 */
uint64_t managed_touch(struct sim *s, uint32_t device, const struct sim_touch *touch, uint32_t count,
                       uint64_t now_ns);
/*
 * Evict until this process has `bytes` available; return false if that is not possible. Requires the device's
 * lock.
 */
bool managed_evict_for(struct sim *s, uint32_t device, uint64_t bytes);
/* The same for another process. */
bool managed_evict_for_process(struct sim *s, uint32_t device, uint32_t proc, uint64_t bytes);
/* Move all that it has on the card to the host. Requires the device's lock. */
void managed_evict_process(struct sim *s, uint32_t device, uint32_t slot);
/* Drop a process that has ended; its charges were removed already. Requires the device's lock. */
void managed_drop_process(struct sim *s, uint32_t device, uint32_t slot);

#endif
