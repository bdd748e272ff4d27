/* From a host to a worker that lives: its program is back over another connection. */
#ifndef CALABASH_REMOTE_WORKER_CONTROL_H
#define CALABASH_REMOTE_WORKER_CONTROL_H

#include "remote/worker/greeting.h"

/* Never waits; false: the worker takes none. */
bool cb_control_hand(int control, const struct cb_guest *guest);
/* Wait for one: 1; 0: none came in time, -1: the host is gone. */
int cb_control_take(int control, struct cb_guest *guest, int timeout_ms);

#endif
