/* Process slots of the usage page; see process.c. */
#ifndef CALABASH_SHIM_PROCESS_H
#define CALABASH_SHIM_PROCESS_H

#include "page/page.h"

#include <stdbool.h>

/* Take a slot for this process; -1: all are held by living processes. */
int cb_process_enter(struct cb_usage *usage);

/* Slot of a living process, by its PID in this namespace; -1: it has none. */
int cb_process_find(struct cb_usage *usage, int32_t pid);
bool cb_process_lives(const struct cb_usage *usage, uint32_t slot);

/*
 * Free the slots of dead processes of this PID namespace that hold memory of the device; return their number.
 */
unsigned cb_processes_reap(int device);

/* The same without processes whose PID was reused, which would take a read of /proc for each living process. */
unsigned cb_processes_reap_ended(int device);

/* Bytes of the device held by processes of other PID namespaces, which cannot be checked from here. */
uint64_t cb_processes_elsewhere(int device);

#endif
