/* Waiting for a spin lock that another thread holds. */
#define _GNU_SOURCE
#include "shim/spin.h"

#include <sched.h>
#include <stddef.h>
#include <time.h>

void cb_spin_wait(cb_spin *spin)
{
    const struct timespec pause = {.tv_sec = 0, .tv_nsec = 50000};
    for (unsigned turn = 0;; turn++) {
        if (__atomic_load_n(&spin->held, __ATOMIC_RELAXED) == 0 &&
            !__atomic_exchange_n(&spin->held, 1, __ATOMIC_ACQUIRE))
            return;
        if (turn < 100)
            cb_relax();
        else if (turn < 1000)
            sched_yield();
        else
            nanosleep(&pause, NULL); /* the holder may have a lower real-time priority than this thread */
    }
}
