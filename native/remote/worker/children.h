/* Table of the workers of a host. */
#ifndef CALABASH_REMOTE_WORKER_CHILDREN_H
#define CALABASH_REMOTE_WORKER_CHILDREN_H

#include "remote/worker/greeting.h"

#include <sys/types.h>

#define CB_SESSIONS_MAX 1024

enum cb_handing { CB_UNKNOWN_SESSION, CB_HANDED, CB_NOT_TAKEN };

size_t cb_children_count(void);
/*
 * Add a worker. `session` may reconnect, and its new connection is passed to the worker through `control`;
 * NULL: it cannot reconnect.
 */
bool cb_children_add(pid_t pid, const uint8_t *session, int control);
/* Pass a program's new connection to the worker that has its session. */
#define CB_SESSIONS_MAX 1024

enum cb_handing cb_children_hand_over(const struct cb_connecting *guest);
void cb_children_reap(void);
void cb_children_drop(void); /* in a worker: these are not its children */
void cb_children_end(void);  /* kill them, and wait for their end */

#endif
