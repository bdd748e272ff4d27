/* Kernels, as the worker described them when their image was loaded. */
#ifndef CALABASH_REMOTE_CLIENT_FUNCTION_H
#define CALABASH_REMOTE_CLIENT_FUNCTION_H

#include "remote/client/call.h"

#define CB_PARAMETERS_MAX  512
#define CB_PARAMETER_BYTES 32768u /* of one launch */

struct cb_parameter {
    uint32_t offset, bytes;
};

struct cb_function {
    uint64_t id; /* of a function, or of a kernel of a library */
    char *name;
    uint32_t parameters, parameter_bytes, threads_max;
    struct cb_function *next; /* of the same image */
    struct cb_parameter parameter[];
};

/* Of a CUfunction or a CUkernel; NULL: neither. */
struct cb_function *cb_function_of(uint64_t handle);
/* The next one of an answer that describes some; NULL: what came is no description. */
struct cb_function *cb_function_described(struct cb_call *c);
/* The function of a kernel is known like the kernel itself. */
void cb_function_same(uint64_t id, struct cb_function *f);

#endif
