/* Commands that users give to a control daemon. */
#ifndef CALABASH_SIM_MPS_COMMANDS_H
#define CALABASH_SIM_MPS_COMMANDS_H

#include "sim/mps/service.h"

#include <stdio.h>

/* Run a command and write the answer. Return false if it is answered later through a waiter on `fd`. */
bool command_run(struct daemon *d, const char *line, int fd, FILE *out);

#endif
