/* Reset of a simulated card, as by the driver's own tool. */
#ifndef CALABASH_SIM_CTL_RESET_H
#define CALABASH_SIM_CTL_RESET_H

#include "sim/node/state.h"

/*
 * Clear faults and restart volatile counters. Ends the process with an error if the driver would refuse: a
 * process uses the card or one that NVLink connects to it, or it has fallen off the bus.
 */
void simctl_reset(struct sim *s, uint32_t device);

/* Common part of a reset and of the end of all faults. Requires the device's lock. */
void simctl_clear_faults(struct sim_faults *f);

#endif
