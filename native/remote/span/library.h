/* Libraries and kernels are of no context, so a program's is one of each session. */
#ifndef CALABASH_REMOTE_SPAN_LIBRARY_H
#define CALABASH_REMOTE_SPAN_LIBRARY_H

#include "remote/span/route.h"

/* The session's own, for a handle of the program's; what is none of these stays what it is. */
CUlibrary span_library(const struct span_session *s, CUlibrary library);
CUkernel span_kernel(const struct span_session *s, CUkernel kernel);

static inline CUfunction span_kernel_function(const struct span_session *s, CUfunction f)
{
    return (CUfunction)span_kernel(s, (CUkernel)f);
}

#endif
