/* Table of the workers of a host. */
#ifndef CALABASH_REMOTE_WORKER_CHILDREN_H
#define CALABASH_REMOTE_WORKER_CHILDREN_H

#include "remote/worker/greeting.h"

#include <sys/types.h>

#define CB_SESSIONS_MAX 1024
#define CB_ENDING_MS    2000

enum cb_handing { CB_UNKNOWN_SESSION, CB_HANDED, CB_NOT_TAKEN };

size_t cb_children_count(void);
/*
 * Add a worker. `session` may reconnect, and its new connection is passed to the worker through `control`;
 * NULL: it cannot reconnect. `program`: pidfd of the program that it serves, or -1; the table closes it.
 */
bool cb_children_add(pid_t pid, const uint8_t *session, int control, int program);
/*
 * Return true if the program of a worker has ended and the worker has not: memory of that program is still
 * used in the slice. A worker that has not ended CB_ENDING_MS after the end of its program was first seen does
 * not count any more: a process that the program has forked may use the connection.
 */
bool cb_children_are_ending(int64_t now_ms);
/* Pass a program's new connection to the worker that has its session. */
enum cb_handing cb_children_hand_over(const struct cb_connecting *guest);
void cb_children_reap(void);
void cb_children_drop(void); /* in a worker: these are not its children */
void cb_children_end(void);  /* kill them, and wait for their end */

#endif
