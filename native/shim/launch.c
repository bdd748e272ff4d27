/*
 * Hooks of launches and synchronisation, which call the compute limiter.
 *
 * Each launch is wrapped in the limiter's begin and end, which cost a few loads if no limit is in force. No
 * lock is taken and no other driver function called. Waits report to the limiter that work has finished, and
 * update the charges of pools.
 */
#include "shim/base.h"

#include "shim/pool.h"
#include "shim/real.h"
#include "shim/start.h"

#include "shim/compute.h"

static inline bool is_per_thread(CUstream stream)
{
    return stream == CU_STREAM_PER_THREAD;
}

#define LAUNCH(key, stream, per_thread, call)                                   \
    do {                                                                        \
        struct cb_launch launch;                                                \
        CB_ENTER();                                                             \
        launch.tracked = CB_UNTRACKED;                                          \
        if (CB_UNLIKELY(cb_advance.launches_left != 0 || !cb_compute_passes())) \
            cb_launch_begin(&launch, key, stream, per_thread);                  \
        CUresult result = call;                                                 \
        cb_launch_end(&launch, result);                                         \
        return result;                                                          \
    } while (0)

#define KEY(f) cb_kernel_key(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ)
#define SHAPE                                                                                    \
    unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX, \
        unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes
#define SHAPE_ARGUMENTS gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes

CUresult CUDAAPI cuLaunchKernel(CUfunction f, SHAPE, CUstream hStream, void **kernelParams, void **extra)
{
    LAUNCH(KEY(f), hStream, is_per_thread(hStream),
           CB_REAL(cuLaunchKernel)(f, SHAPE_ARGUMENTS, hStream, kernelParams, extra));
}

CUresult CUDAAPI cuLaunchKernel_ptsz(CUfunction f, SHAPE, CUstream hStream, void **kernelParams, void **extra)
{
    LAUNCH(KEY(f), hStream, true,
           CB_REAL(cuLaunchKernel_ptsz)(f, SHAPE_ARGUMENTS, hStream, kernelParams, extra));
}

CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction f, SHAPE, CUstream hStream, void **kernelParams)
{
    LAUNCH(KEY(f), hStream, is_per_thread(hStream),
           CB_REAL(cuLaunchCooperativeKernel)(f, SHAPE_ARGUMENTS, hStream, kernelParams));
}

CUresult CUDAAPI cuLaunchCooperativeKernel_ptsz(CUfunction f, SHAPE, CUstream hStream, void **kernelParams)
{
    LAUNCH(KEY(f), hStream, true,
           CB_REAL(cuLaunchCooperativeKernel_ptsz)(f, SHAPE_ARGUMENTS, hStream, kernelParams));
}

static uint64_t config_key(CUfunction f, const CUlaunchConfig *c)
{
    return c == NULL ? 1
                     : cb_kernel_key(f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,
                                     c->blockDimZ);
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
                                  void **extra)
{
    CUstream stream = config != NULL ? config->hStream : NULL;
    LAUNCH(config_key(f, config), stream, is_per_thread(stream),
           CB_REAL(cuLaunchKernelEx)(config, f, kernelParams, extra));
}

CUresult CUDAAPI cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
                                       void **extra)
{
    LAUNCH(config_key(f, config), config != NULL ? config->hStream : NULL, true,
           CB_REAL(cuLaunchKernelEx_ptsz)(config, f, kernelParams, extra));
}

/* One call launches on several devices: the limiter counts the launch on the current one. */
CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList,
                                                      unsigned int numDevices, unsigned int flags)
{
    const CUDA_LAUNCH_PARAMS *p = numDevices > 0 ? launchParamsList : NULL;
    uint64_t key = p == NULL ? 1
                             : cb_kernel_key(p->function, p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX,
                                             p->blockDimY, p->blockDimZ);
    CUstream stream = p != NULL ? p->hStream : NULL;
    LAUNCH(key, stream, is_per_thread(stream),
           CB_REAL(cuLaunchCooperativeKernelMultiDevice)(launchParamsList, numDevices, flags));
}

CUresult CUDAAPI cuLaunch(CUfunction f)
{
    LAUNCH(cb_kernel_key(f, 1, 1, 1, 0, 0, 0), NULL, false, CB_REAL(cuLaunch)(f));
}

CUresult CUDAAPI cuLaunchGrid(CUfunction f, int grid_width, int grid_height)
{
    LAUNCH(cb_kernel_key(f, (unsigned)grid_width, (unsigned)grid_height, 1, 0, 0, 0), NULL, false,
           CB_REAL(cuLaunchGrid)(f, grid_width, grid_height));
}

CUresult CUDAAPI cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream)
{
    LAUNCH(cb_kernel_key(f, (unsigned)grid_width, (unsigned)grid_height, 1, 0, 0, 0), hStream,
           is_per_thread(hStream), CB_REAL(cuLaunchGridAsync)(f, grid_width, grid_height, hStream));
}

#define WAIT(call, stream, per_thread, all)                         \
    do {                                                            \
        CB_ENTER();                                                 \
        uint64_t mark = cb_compute_mark();                          \
        CUresult result = call;                                     \
        if (result == CUDA_SUCCESS) {                               \
            cb_compute_synchronized(mark, stream, per_thread, all); \
            cb_pools_settle();                                      \
        }                                                           \
        return result;                                              \
    } while (0)

CUresult CUDAAPI cuCtxSynchronize(void)
{
    WAIT(CB_REAL(cuCtxSynchronize)(), NULL, false, true);
}

CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext ctx)
{
    WAIT(CB_REAL(cuCtxSynchronize_v2)(ctx), NULL, false, ctx == NULL);
}

CUresult CUDAAPI cuStreamSynchronize(CUstream hStream)
{
    WAIT(CB_REAL(cuStreamSynchronize)(hStream), hStream, is_per_thread(hStream), false);
}

CUresult CUDAAPI cuStreamSynchronize_ptsz(CUstream hStream)
{
    WAIT(CB_REAL(cuStreamSynchronize_ptsz)(hStream), hStream, true, false);
}

CUresult CUDAAPI cuEventSynchronize(CUevent hEvent)
{
    CB_ENTER();
    CUresult result = CB_REAL(cuEventSynchronize)(hEvent);
    if (result == CUDA_SUCCESS) cb_pools_settle();
    return result;
}
