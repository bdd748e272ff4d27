/* Options of the driver's compiler, with log buffers of our own. */
#ifndef CALABASH_REMOTE_WORKER_JIT_OPTIONS_H
#define CALABASH_REMOTE_WORKER_JIT_OPTIONS_H

#include "remote/wire/code.h"
#include "remote/worker/request.h"

struct cb_jit {
    unsigned int count;
    CUjit_option option[CB_JIT_MAX];
    void *value[CB_JIT_MAX];
    char *log[2]; /* information log, error log */
    unsigned int capacity[2];
};

/* Take the options; the request is bad if they are malformed. */
void cb_jit_take(struct cb_request *q, struct cb_jit *j);
void cb_jit_give(struct cb_request *q, const struct cb_jit *j);
void cb_jit_free(struct cb_jit *j);

#endif
