/* Kernels, as the worker described them when their image was loaded. */
#ifndef CALABASH_REMOTE_CLIENT_MODULE_FUNCTION_INFO_H
#define CALABASH_REMOTE_CLIENT_MODULE_FUNCTION_INFO_H

#include "remote/client/connection/call.h"
#include "remote/wire/code.h"
#include "remote/wire/device.h"

#define CB_PARAMETER_BYTES 32768u /* of one launch */

struct cb_parameter {
    uint32_t offset, bytes;
};

struct cb_function {
    uint64_t id;    /* of a function, or of a kernel of a library */
    uint64_t image; /* the module or library that it is of */
    uint64_t serial;
    char *name;
    uint32_t parameters, parameter_bytes;
    /* Of the device that the image was loaded for; asked for when a large image was not described in full. */
    bool known;
    CUdevice device;
    struct cb_attribute attribute[CB_FUNCTION_ATTRIBUTES];
    uint32_t threads_max, shared_max; /* what a launch may have at most */
    uint32_t changes;                 /* of its attributes */
    struct cb_parameter parameter[];
};

/* Of a CUfunction or a CUkernel; NULL: neither. */
struct cb_function *cb_function_of(uint64_t handle);
/* What the answer says of the next one, known by its number from here on; NULL: no memory, or not an answer of ours. */
struct cb_function *cb_function_take(struct cb_call *c, uint64_t image);
void cb_function_drop(struct cb_function *f);
/* Ask for its attributes unless they are known. */
CUresult cb_function_know(struct cb_function *f);

#endif
