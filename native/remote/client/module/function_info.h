/* Description of kernels, as the worker sent it when their image was loaded. */
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
    uint64_t image; /* the module or library that contains it */
    uint64_t serial;
    char *name;
    uint32_t parameters, parameter_bytes;
    /*
     * Attributes on the device for which the image was loaded; asked for if a large image was not described in
     * full.
     */
    bool known;
    CUdevice device;
    struct cb_attribute attribute[CB_FUNCTION_ATTRIBUTES];
    uint32_t threads_max, shared_max; /* limits of a launch */
    uint32_t changes;                 /* number of changes to its attributes */
    struct cb_parameter parameter[];
};

/* Of a CUfunction or a CUkernel; NULL: neither. */
struct cb_function *cb_function_of(uint64_t handle);
/* Add the next function that the answer describes; NULL: no memory, or a malformed answer. */
struct cb_function *cb_function_take(struct cb_call *c, uint64_t image);
void cb_function_drop(struct cb_function *f);
/* Ask for its attributes unless they are known. */
CUresult cb_function_load_attributes(struct cb_function *f);

#endif
