/* Declarations that the generated functions use. */
#ifndef CALABASH_REMOTE_CLIENT_API_GENERATED_H
#define CALABASH_REMOTE_CLIENT_API_GENERATED_H

#include "remote/client/api/object_table.h"
#include "remote/client/api/refused_calls.h"
#include "remote/client/connection/call.h"
#include "remote/client/context/context_stack.h"
#include "remote/client/graph/capture.h"

/* Addresses of this library's own functions, by enum cb_cuda_function. */
extern void *const cb_client_address[CB_CUDA_COUNT];

#define STUB __attribute__((weak, visibility("default")))

#endif
