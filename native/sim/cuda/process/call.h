/* Common header of the driver's functions: the driver API and the macros of exported functions. */
#ifndef CALABASH_SIM_CUDA_PROCESS_CALL_H
#define CALABASH_SIM_CUDA_PROCESS_CALL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define __CUDA_API_VERSION_INTERNAL
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* Return the result of the call from this function, unless it is success. */
#define OK_OR_RETURN(call)                         \
    do {                                           \
        CUresult answer = (call);                  \
        if (answer != CUDA_SUCCESS) return answer; \
    } while (0)

#endif
