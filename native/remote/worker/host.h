/*
 * The host of a lease's workers: a process that reads the greetings of connections to its Unix socket, and
 * forks a worker for each. It opens no driver and reads nothing of a program except its greeting; it never
 * blocks on a peer.
 */
#ifndef CALABASH_REMOTE_WORKER_HOST_H
#define CALABASH_REMOTE_WORKER_HOST_H

#include "remote/worker/greeting.h"

#include <sys/types.h>

#define CB_GREETING_MS 2000

struct cb_host_options {
    int listener, owner; /* the host ends when `owner` reaches its end; -1: no owner */
    unsigned sessions;   /* most sessions at a time */
    long broker_uid;     /* user who may hand over connections besides root and our own user; -1: none */
};

/* Serve a program on its connection, in the worker's own process; return its exit code. */
typedef int cb_host_work(struct cb_connecting *guest, int control);

/* Run until told to end; return the exit code of the host. */
int cb_host_run(const struct cb_host_options *options, cb_host_work *work);

#endif
