/*
 * Free memory of a card, and the amounts that processes hold of it. Everything here requires the device's lock.
 */
#ifndef CALABASH_SIM_NODE_DEVICE_MEMORY_H
#define CALABASH_SIM_NODE_DEVICE_MEMORY_H

#include "sim/node/state.h"

/* The GPU instance of a process; NULL if it has the whole card. */
struct sim_gi *sim_instance_of(struct sim_device *d, const struct sim_proc_device *p);

/* Update the peaks after an allocation. */
void sim_update_peaks(struct sim *s, uint32_t device);

/*
 * Bytes free on `device` for the process in `proc`; and changing its amount. The caller has checked the free
 * bytes.
 */
uint64_t sim_free_bytes(const struct sim *s, uint32_t device, uint32_t proc);
void sim_hold(struct sim *s, uint32_t device, uint32_t proc, int64_t bytes);

#endif
