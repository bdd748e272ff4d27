/* Clients that wait for an answer of the control daemon. */
#include "sim/mps/waiters.h"

bool waiter_add(struct daemon *d, const struct waiter *w)
{
    for (uint32_t i = 0; i < WAITERS_MAX; i++) {
        if (d->waiter[i].fd >= 0) continue;
        d->waiter[i] = *w;
        return true;
    }
    return false;
}
