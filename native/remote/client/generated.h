/* What the generated functions stand on. */
#ifndef CALABASH_REMOTE_CLIENT_GENERATED_H
#define CALABASH_REMOTE_CLIENT_GENERATED_H

#include "remote/client/call.h"
#include "remote/client/capture.h"
#include "remote/client/current.h"
#include "remote/client/object.h"
#include "remote/client/refused.h"

/* Addresses of this library's own functions, by enum cb_cuda_function. */
extern void *const cb_client_address[CB_CUDA_COUNT];

#define STUB __attribute__((weak, visibility("default")))

#endif
