/*
 * The host of a lease's workers: a process that greets whoever connects to its Unix socket, and makes a worker for each.
 * It opens no driver and reads nothing of a program but its greeting; it waits for nobody.
 */
#ifndef CALABASH_REMOTE_WORKER_HOST_H
#define CALABASH_REMOTE_WORKER_HOST_H

#include "remote/worker/greeting.h"

#include <sys/types.h>

#define CB_GREETING_MS 2000

struct cb_host_options {
    int listener, owner; /* when `owner` reaches its end, so do we; -1: there is none */
    unsigned sessions;   /* at once */
    long broker_uid;     /* who may hand over connections besides root and our own user; -1: nobody */
};

/* Serves a program on its connection, in the worker's own process; its exit code. */
typedef int cb_host_work(struct cb_guest *guest, int control);

/* Until told to end; the exit code of the host. */
int cb_host_run(const struct cb_host_options *options, cb_host_work *work);

#endif
