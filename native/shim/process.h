/* Process slots of the usage page; see process.c. */
#ifndef CALABASH_SHIM_PROCESS_H
#define CALABASH_SHIM_PROCESS_H

#include "page/page.h"

#include <stdbool.h>

/* Claims a slot for this process; -1: all are held by living processes. */
int cb_process_claim(struct cb_usage *usage);

/* Frees the slots of dead processes of this PID namespace; how many. */
unsigned cb_processes_reclaim(void);

#endif
