/* The workers of a host. */
#ifndef CALABASH_REMOTE_WORKER_CHILDREN_H
#define CALABASH_REMOTE_WORKER_CHILDREN_H

#include "remote/worker/greeting.h"

#include <sys/types.h>

#define CB_SESSIONS_MAX 1024

enum cb_handing { CB_UNKNOWN_SESSION, CB_HANDED, CB_NOT_TAKEN };

size_t cb_children_count(void);
/* `session` may come back over another connection, which goes to the worker through `control`; NULL: it cannot. */
bool cb_children_add(pid_t pid, const uint8_t *session, int control);
/* Hand a program's new connection to the worker that has its session. */
#define CB_SESSIONS_MAX 1024

enum cb_handing cb_children_hand(const struct cb_guest *guest);
void cb_children_reap(void);
void cb_children_forget(void); /* in a worker: these are not its own */
void cb_children_end(void);    /* kill them, and wait for their end */

#endif
