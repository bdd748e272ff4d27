/*
 * Where managed memory lies: on the card as long as there is room, on the host when others need the room.
 *
 * An allocation takes its place on the card at once, as far as the card has room. Work that touches it brings in
 * what is missing before it runs, at the speed of the card's link; the least recently used is evicted for that,
 * which costs the link as much again, because what was on the card is written back. What work touches and the
 * card cannot hold passes through it each time. Memory that nothing was ever written to moves at no cost.
 */
#ifndef CALABASH_SIM_MANAGED_H
#define CALABASH_SIM_MANAGED_H

#include "sim/node/state.h"

#define MANAGED_LOOK UINT64_MAX

/* Follow an allocation of this process; false when the table is full or the card is lost to it. */
bool managed_add(struct sim *s, uint32_t device, uint64_t bytes, struct sim_touch *out);
void managed_remove(struct sim *s, uint32_t device, const struct sim_touch *at);
/* The program has written so much of it from the host's side. */
void managed_written(struct sim *s, uint32_t device, const struct sim_touch *at);

/* For the engine, with the device's lock: how long it takes to bring in what work touches at `now_ns`, and that is
 * done. MANAGED_LOOK: nothing changes, and the time is an estimate. */
uint64_t managed_touch(struct sim *s, uint32_t device, const struct sim_touch *touch, uint32_t count,
                       uint64_t now_ns);
/* Evict until this process has room for `bytes`; false when that is not possible. With the device's lock. */
bool managed_make_room(struct sim *s, uint32_t device, uint64_t bytes);
/* The same for another process. */
bool managed_make_room_for(struct sim *s, uint32_t device, uint32_t proc, uint64_t bytes);
/* All that it has on the card goes to the host. With the device's lock. */
void managed_evict_process(struct sim *s, uint32_t device, uint32_t slot);
/* The process has ended; what it held is off the books already. With the device's lock. */
void managed_drop_process(struct sim *s, uint32_t device, uint32_t slot);

#endif
