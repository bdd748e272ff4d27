/* What a worker may do once it serves a program. */
#ifndef CALABASH_REMOTE_WORKER_SANDBOX_H
#define CALABASH_REMOTE_WORKER_SANDBOX_H

#include <stdbool.h>

/* Keep the memory of this process, a host's as well, from other processes of its user and from core files. */
bool cb_sandbox_close_memory(void);

/* In a worker of a host, when the driver is loaded and before a byte of the program is read. False: it must not serve. */
bool cb_sandbox_enter(void);

#endif
