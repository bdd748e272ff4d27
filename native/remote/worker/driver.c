/*
 * Function table of the driver behind the worker, by exported names; functions of preloaded libraries take
 * precedence.
 */
#include "remote/worker/driver.h"

#include "api/cuda_resolve.h"
#include "remote/worker/request.h"

#include <dlfcn.h>
#include <stdio.h>

void *cb_driver[CB_CUDA_COUNT];

static CUresult driver_function_absent(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

bool cb_driver_open(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "worker: %s\n", dlerror());
        return false;
    }
    for (int i = 0; i < CB_CUDA_COUNT; i++) {
        void *found = dlsym(library, cb_cuda_names[i]);
        cb_driver[i] = found ? found : (void *)driver_function_absent;
    }
    return true;
}
