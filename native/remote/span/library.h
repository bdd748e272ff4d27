/*
 * Libraries and kernels of a span. They belong to no context, so each of the program's stands for one of every
 * session.
 */
#ifndef CALABASH_REMOTE_SPAN_LIBRARY_H
#define CALABASH_REMOTE_SPAN_LIBRARY_H

#include "remote/span/route.h"

/* The session's own handle for a handle of the program; other handles are returned unchanged. */
CUlibrary span_library(const struct span_session *s, CUlibrary library);
CUkernel span_kernel(const struct span_session *s, CUkernel kernel);

static inline CUfunction span_kernel_function(const struct span_session *s, CUfunction f)
{
    return (CUfunction)span_kernel(s, (CUkernel)f);
}

#endif
