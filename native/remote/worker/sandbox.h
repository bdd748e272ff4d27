/* Restrictions of a worker while it serves a program. */
#ifndef CALABASH_REMOTE_WORKER_SANDBOX_H
#define CALABASH_REMOTE_WORKER_SANDBOX_H

#include <stdbool.h>

/* Protect the memory of this process, or of a host, from other processes of its user and from core files. */
bool cb_sandbox_close_memory(void);

/*
 * Enter the sandbox, in a worker of a host, when the driver is loaded and before a byte of the program is read.
 * If it returns false the worker must not serve.
 */
bool cb_sandbox_enter(void);

#endif
