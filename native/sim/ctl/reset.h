/* Resetting a simulated card, as the driver's own tool does. */
#ifndef CALABASH_SIM_CTL_RESET_H
#define CALABASH_SIM_CTL_RESET_H

#include "sim/node/state.h"

/* Faults end and volatile counters start again. Ends the process with the reason when the driver would refuse:
 * somebody uses the card or one that NVLink joins it to, or it has fallen off the bus. */
void simctl_reset(struct sim *s, uint32_t device);

/* What a reset and the end of all faults have in common. The caller holds the device's lock. */
void simctl_clear_faults(struct sim_faults *f);

#endif
