/*
 * A tenant that takes device memory as it is told: it prints "ready", reads numbers from standard input, tries
 * to take so many MiB for each, and prints "taken N" or "refused N". It ends with its input.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

static void check(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS) return;
    printf("failed %s %d\n", what, (int)result);
    fflush(stdout);
    exit(3);
}

int main(void)
{
    CUdevice device;
    CUcontext context;
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    puts("ready");
    fflush(stdout);
    unsigned long long mib;
    while (scanf("%llu", &mib) == 1) {
        CUdeviceptr pointer;
        CUresult result = cuMemAlloc(&pointer, mib << 20);
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) check(result, "cuMemAlloc");
        printf("%s %llu\n", result == CUDA_SUCCESS ? "taken" : "refused", mib);
        fflush(stdout);
    }
    return 0;
}
