/* The room of a card, and the books of what processes hold of it. Everything here with the device's lock. */
#ifndef CALABASH_SIM_ROOM_H
#define CALABASH_SIM_ROOM_H

#include "sim/node/state.h"

/* The GPU instance that a process is on; NULL when it has the whole card. */
struct sim_gi *sim_instance_of(struct sim_device *d, const struct sim_proc_device *p);

/* Something was taken: the peaks follow. */
void sim_see_peaks(struct sim *s, uint32_t device);

/* Room that is left on `device` for the process in `proc`, and moving its bytes on and off. The caller has looked at
 * the room. */
uint64_t sim_room(const struct sim *s, uint32_t device, uint32_t proc);
void sim_hold(struct sim *s, uint32_t device, uint32_t proc, int64_t bytes);

#endif
