/* The control daemon's start and main loop. */
#ifndef CALABASH_SIM_MPS_DAEMON_H
#define CALABASH_SIM_MPS_DAEMON_H

#include "sim/mps/service.h"

/* Take the pipe directory. 0, or the exit status after a message. */
int daemon_open(struct daemon *d);

/* Serve until quit. Return the exit status. */
int daemon_run(struct daemon *d);

#endif
