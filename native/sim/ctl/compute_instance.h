/* Faults of a compute instance, and the reboot of a node. */
#ifndef CALABASH_SIM_CTL_COMPUTE_INSTANCE_H
#define CALABASH_SIM_CTL_COMPUTE_INSTANCE_H

#include "sim/node/state.h"

/*
 * Inject a fault that a driver contains in an instance; `uuid` is a "MIG-..." text. Ends with an error for
 * other faults.
 */
void simctl_inject_part(struct sim *s, const char *uuid, const char *what, const char *value);

/* Restart the machine: refused while processes use the node; removes all instances. */
void simctl_reboot(const char *path);

#endif
