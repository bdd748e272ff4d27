#ifndef CALABASH_REMOTE_WORKER_ENVIRONMENT_H
#define CALABASH_REMOTE_WORKER_ENVIRONMENT_H

#include "remote/worker/request.h"

/* Apply the program's environment to the driver, before the driver is initialized. */
void cb_take_environment(struct cb_request *q);

#endif
