/* Fault injection. */
#ifndef CALABASH_SIMCTL_INJECT_H
#define CALABASH_SIMCTL_INJECT_H

#include "sim/node/state.h"

/* Apply one fault to one device. `what` and `value` (may be NULL) are the user's words. */
void simctl_inject(struct sim *s, uint32_t device, const char *what, const char *value);
extern const char simctl_inject_help[];

#endif
