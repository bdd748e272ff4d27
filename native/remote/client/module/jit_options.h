/* Options of the compiler behind the driver: what goes in, and the logs that come back. */
#ifndef CALABASH_REMOTE_CLIENT_MODULE_JIT_OPTIONS_H
#define CALABASH_REMOTE_CLIENT_MODULE_JIT_OPTIONS_H

#include "remote/client/connection/call.h"

struct cb_jit {
    unsigned int count;
    const CUjit_option *option;
    void **value;
};

/* Whether they can travel at all. */
CUresult cb_jit_check(const struct cb_jit *j);
void cb_jit_put(struct cb_call *c, const struct cb_jit *j);
/* What the answer says of them, written where the program wants it. */
void cb_jit_take(struct cb_call *c, const struct cb_jit *j);

#endif
