/* Functions that do not travel. */
#ifndef CALABASH_REMOTE_REFUSED_H
#define CALABASH_REMOTE_REFUSED_H

#include "remote/client/base.h"

/* What such a function answers; `function` is an enum cb_cuda_function. */
CUresult cb_refused(int function);

#endif
