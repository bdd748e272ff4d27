/* Driver functions that are not forwarded. */
#ifndef CALABASH_REMOTE_CLIENT_API_REFUSED_CALLS_H
#define CALABASH_REMOTE_CLIENT_API_REFUSED_CALLS_H

#include "remote/client/api/base.h"

/* Report the function once and return CUDA_ERROR_NOT_SUPPORTED; `function` is an enum cb_cuda_function. */
CUresult cb_call_refused(int function);

#endif
