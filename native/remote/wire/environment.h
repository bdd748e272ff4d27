/*
 * Variables of the program's environment that a driver reads: they are applied to the driver behind the worker.
 */
#ifndef CALABASH_REMOTE_ENVIRONMENT_H
#define CALABASH_REMOTE_ENVIRONMENT_H

#define CB_VISIBLE_DEVICES "CUDA_VISIBLE_DEVICES"

/* X(name) */
#define CB_ENVIRONMENT(X)     \
    X(CB_VISIBLE_DEVICES)     \
    X("CUDA_DEVICE_ORDER")    \
    X("CUDA_MODULE_LOADING")  \
    X("CUDA_LAUNCH_BLOCKING") \
    X("CUDA_FORCE_PTX_JIT")   \
    X("CUDA_DISABLE_PTX_JIT") \
    X("CUDA_DEVICE_MAX_CONNECTIONS")

#endif
