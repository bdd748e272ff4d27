/* What the generated functions stand on. */
#ifndef CALABASH_REMOTE_CLIENT_GENERATED_H
#define CALABASH_REMOTE_CLIENT_GENERATED_H

#include "remote/client/context.h"
#include "remote/client/object.h"
#include "remote/client/session.h"

/* What a function that does not travel answers; `function` is an enum cb_cuda_function. */
CUresult cb_refused(int function);

/* Addresses of this library's own functions, by enum cb_cuda_function. */
extern void *const cb_client_address[CB_CUDA_COUNT];

#define STUB __attribute__((weak, visibility("default")))

#endif
