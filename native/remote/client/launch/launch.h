/* Parameters of kernels, as they travel. */
#ifndef CALABASH_REMOTE_CLIENT_LAUNCH_LAUNCH_H
#define CALABASH_REMOTE_CLIENT_LAUNCH_LAUNCH_H

#include "remote/client/module/function_info.h"

/* By their addresses or packed. The call fails, or an error is answered, when they cannot be those of the kernel. */
CUresult cb_put_parameters(struct cb_call *c, const struct cb_function *f, void **parameters, void **extra);

#endif
