/* Control socket from a host to a living worker: passes a new connection of its program. */
#ifndef CALABASH_REMOTE_WORKER_CONTROL_H
#define CALABASH_REMOTE_WORKER_CONTROL_H

#include "remote/worker/greeting.h"

/* Never waits; return false if the worker takes none. */
bool cb_control_send(int control, const struct cb_connecting *guest);
/* Wait for a connection: 1; 0: none came in time, -1: the host has ended. */
int cb_control_receive(int control, struct cb_connecting *guest, int timeout_ms);

#endif
