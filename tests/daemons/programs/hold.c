/*
 * A tenant that holds memory: takes blocks of BLOCK MiB until TOTAL MiB are held or the driver refuses,
 * prints "held MIB" and then waits for standard input to end (or for a signal).
 *
 *     hold TOTAL BLOCK
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void check(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS) return;
    printf("failed %s %d\n", what, (int)result);
    fflush(stdout);
    exit(3);
}

int main(int argc, char **argv)
{
    if (argc != 3) return 2;
    size_t total = (size_t)atoll(argv[1]), block = (size_t)atoll(argv[2]), held = 0;
    CUdevice device;
    CUcontext context;
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    while (held < total) {
        CUdeviceptr pointer;
        if (cuMemAlloc(&pointer, block << 20) != CUDA_SUCCESS) break;
        held += block;
    }
    printf("held %zu\n", held);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    return 0;
}
