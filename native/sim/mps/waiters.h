/* Who waits at the control daemon. */
#ifndef CALABASH_SIM_MPS_WAITERS_H
#define CALABASH_SIM_MPS_WAITERS_H

#include "sim/mps/service.h"

/* False when too many wait. */
bool waiter_add(struct daemon *d, const struct waiter *w);

#endif
