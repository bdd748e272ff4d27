/* What happens to a compute instance, and what a reboot leaves of all of them. */
#ifndef CALABASH_SIMCTL_PART_H
#define CALABASH_SIMCTL_PART_H

#include "sim/node/state.h"

/* Cause one of the faults that a driver contains in an instance; `uuid` is a "MIG-..." text. Ends with an error for
 * others. */
void simctl_inject_part(struct sim *s, const char *uuid, const char *what, const char *value);

/* Restart the machine: refused while processes use the node; instances are gone then. */
void simctl_reboot(const char *path);

#endif
