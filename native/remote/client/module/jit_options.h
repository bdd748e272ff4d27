/* Options of the driver's compiler: encoding of the inputs, and the logs that come back. */
#ifndef CALABASH_REMOTE_CLIENT_MODULE_JIT_OPTIONS_H
#define CALABASH_REMOTE_CLIENT_MODULE_JIT_OPTIONS_H

#include "remote/client/connection/call.h"

struct cb_jit {
    unsigned int count;
    const CUjit_option *option;
    void **value;
};

/* Return CUDA_SUCCESS if the options can be sent. */
CUresult cb_jit_check(const struct cb_jit *j);
void cb_jit_put(struct cb_call *c, const struct cb_jit *j);
/* Write the logs and values of the answer to the program's buffers. */
void cb_jit_take(struct cb_call *c, const struct cb_jit *j);

#endif
