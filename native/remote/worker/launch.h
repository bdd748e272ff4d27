/* Shape and attributes of a launch, taken from a request. */
#ifndef CALABASH_REMOTE_WORKER_LAUNCH_H
#define CALABASH_REMOTE_WORKER_LAUNCH_H

#include "remote/wire/code.h"
#include "remote/worker/request.h"

struct cb_config {
    CUlaunchConfig config;
    CUlaunchAttribute attribute[CB_LAUNCH_ATTRIBUTES];
};

void cb_take_config(struct cb_request *q, struct cb_config *c);
/* Take the handle of a function or a kernel. */
void *cb_take_function(struct cb_request *q);

#endif
