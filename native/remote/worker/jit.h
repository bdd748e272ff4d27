/* Options of the compiler behind the driver, in buffers of our own. */
#ifndef CALABASH_REMOTE_WORKER_JIT_H
#define CALABASH_REMOTE_WORKER_JIT_H

#include "remote/wire/code.h"
#include "remote/worker/request.h"

struct cb_jit {
    unsigned int count;
    CUjit_option option[CB_JIT_MAX];
    void *value[CB_JIT_MAX];
    char *log[2]; /* information, errors */
    unsigned int room[2];
};

/* The request is bad when they are none of ours. */
void cb_jit_take(struct cb_request *q, struct cb_jit *j);
void cb_jit_give(struct cb_request *q, const struct cb_jit *j);
void cb_jit_free(struct cb_jit *j);

#endif
