/* From a host to a worker that lives: its program is back over another connection. */
#ifndef CALABASH_REMOTE_WORKER_CONTROL_H
#define CALABASH_REMOTE_WORKER_CONTROL_H

#include "remote/worker/greeting.h"

/* Never waits; false: the worker takes none. */
bool cb_control_hand(int control, const struct cb_guest *guest);
/* Wait for one; false: none came in time, or the host is gone. */
bool cb_control_take(int control, struct cb_guest *guest, int timeout_ms);

#endif
