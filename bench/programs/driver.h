/* The driver functions that the benchmark programs use, looked up at run time without a link-time libcuda. */
#ifndef BENCH_DRIVER_H
#define BENCH_DRIVER_H

#define __CUDA_API_VERSION_INTERNAL /* every version under its own name */
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define FUNCTIONS(X)                                            \
    X(cuInit, cuInit)                                           \
    X(cuDeviceGet, cuDeviceGet)                                 \
    X(cuDeviceGetCount, cuDeviceGetCount)                       \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute)               \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)       \
    X(cuCtxSetCurrent, cuCtxSetCurrent)                         \
    X(cuCtxGetDevice, cuCtxGetDevice)                           \
    X(cuCtxSynchronize, cuCtxSynchronize)                       \
    X(cuModuleLoadData, cuModuleLoadData)                       \
    X(cuModuleGetFunction, cuModuleGetFunction)                 \
    X(cuLaunchKernel, cuLaunchKernel)                           \
    X(cuStreamCreate, cuStreamCreate)                           \
    X(cuStreamSynchronize, cuStreamSynchronize)                 \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2)            \
    X(cuStreamEndCapture, cuStreamEndCapture)                   \
    X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags) \
    X(cuGraphLaunch, cuGraphLaunch)                             \
    X(cuEventCreate, cuEventCreate)                             \
    X(cuEventRecord, cuEventRecord)                             \
    X(cuEventSynchronize, cuEventSynchronize)                   \
    X(cuEventElapsedTime, cuEventElapsedTime)                   \
    X(cuMemAlloc, cuMemAlloc_v2)                                \
    X(cuMemFree, cuMemFree_v2)                                  \
    X(cuMemGetInfo, cuMemGetInfo_v2)                            \
    X(cuMemAllocPitch, cuMemAllocPitch_v2)                      \
    X(cuMemAllocManaged, cuMemAllocManaged)                     \
    X(cuMemAllocAsync, cuMemAllocAsync)                         \
    X(cuMemFreeAsync, cuMemFreeAsync)                           \
    X(cuMemCreate, cuMemCreate)                                 \
    X(cuMemRelease, cuMemRelease)                               \
    X(cuArrayCreate, cuArrayCreate_v2)                          \
    X(cuArrayDestroy, cuArrayDestroy)

#define DECLARE(name, symbol) static __typeof__(&symbol) d_##name;
FUNCTIONS(DECLARE)
#undef DECLARE

static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void check(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: CUDA error %d\n", what, (int)result);
    exit(3);
}
#define CHECK(call) check((call), #call)

static inline void driver_open(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
#define LOOK_UP(name, symbol)                                 \
    d_##name = (__typeof__(d_##name))dlsym(library, #symbol); \
    if (d_##name == NULL) {                                   \
        fprintf(stderr, "no %s in this driver\n", #symbol);   \
        exit(2);                                              \
    }
    FUNCTIONS(LOOK_UP)
#undef LOOK_UP
}

/* The kernels' PTX is beside the program; the driver compiles it. */
static inline CUmodule load_kernels(const char *path)
{
    FILE *file = fopen(path, "rb");
    static char image[1 << 16];
    size_t size = file ? fread(image, 1, sizeof(image) - 1, file) : 0;
    if (size == 0) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(2);
    }
    fclose(file);
    CUmodule module;
    CHECK(d_cuModuleLoadData(&module, image));
    return module;
}

#endif
