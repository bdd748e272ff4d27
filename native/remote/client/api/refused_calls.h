/* Functions that do not travel. */
#ifndef CALABASH_REMOTE_CLIENT_API_REFUSED_CALLS_H
#define CALABASH_REMOTE_CLIENT_API_REFUSED_CALLS_H

#include "remote/client/api/base.h"

/* What such a function answers; `function` is an enum cb_cuda_function. */
CUresult cb_refused(int function);

#endif
