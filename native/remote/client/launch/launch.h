/* Encoding of kernel parameters. */
#ifndef CALABASH_REMOTE_CLIENT_LAUNCH_LAUNCH_H
#define CALABASH_REMOTE_CLIENT_LAUNCH_LAUNCH_H

#include "remote/client/module/function_info.h"

/*
 * From their addresses or packed. The call fails, or an error is returned, if they cannot be the kernel's
 * parameters.
 */
CUresult cb_put_parameters(struct cb_call *c, const struct cb_function *f, void **parameters, void **extra);

#endif
