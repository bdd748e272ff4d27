/* Clients that wait for an answer of the control daemon. */
#ifndef CALABASH_SIM_MPS_WAITERS_H
#define CALABASH_SIM_MPS_WAITERS_H

#include "sim/mps/service.h"

/* Return false if too many wait. */
bool waiter_add(struct daemon *d, const struct waiter *w);

#endif
