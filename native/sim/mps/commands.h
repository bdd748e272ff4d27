/* The commands that people give to a control daemon. */
#ifndef CALABASH_SIM_MPS_COMMANDS_H
#define CALABASH_SIM_MPS_COMMANDS_H

#include "sim/mps/service.h"

#include <stdio.h>

/* Run one: writes the answer. False: it answers later through a waiter on `fd`. */
bool command_run(struct daemon *d, const char *line, int fd, FILE *out);

#endif
