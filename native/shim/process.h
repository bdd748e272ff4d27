/* Process slots of the usage page; see process.c. */
#ifndef CALABASH_SHIM_PROCESS_H
#define CALABASH_SHIM_PROCESS_H

#include "page/page.h"

#include <stdbool.h>

uint64_t cb_process_start_time(int32_t pid); /* 0: no such process */

/* Takes a slot for this process; -1: all are held by living processes. */
int cb_process_enter(struct cb_usage *usage);

/* The slot of a living process, by the PID that it has here; -1: it has none. */
int cb_process_find(struct cb_usage *usage, int32_t pid);
bool cb_process_lives(const struct cb_usage *usage, uint32_t slot);

/* Frees the slots of dead processes of this PID namespace that hold memory of the device; how many. */
unsigned cb_processes_reap(int device);

/* The same without those whose PID another process has by now, which takes a read of /proc for each living process. */
unsigned cb_processes_reap_ended(int device);

/* What processes of other PID namespaces, which cannot be judged from here, hold of the device. */
uint64_t cb_processes_elsewhere(int device);

#endif
