/* Common header of the client: the driver API, standard headers, and the macros of exported functions. */
#ifndef CALABASH_REMOTE_CLIENT_API_BASE_H
#define CALABASH_REMOTE_CLIENT_API_BASE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define __CUDA_API_PER_THREAD_DEFAULT_STREAM
#include "api/cuda_api.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* Return the result of the call from this function, unless it is success. */
#define CB_OK(call)                                      \
    do {                                                 \
        CUresult cb_answer = (call);                     \
        if (cb_answer != CUDA_SUCCESS) return cb_answer; \
    } while (0)

#endif
