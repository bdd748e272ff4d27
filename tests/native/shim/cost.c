/* What a call costs: prints the median nanoseconds of some driver calls, one "name value" a line. */
#define _GNU_SOURCE
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 301
#define CALLS  200

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int order(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

#define MEASURE(name, body)                            \
    do {                                               \
        double rounds[ROUNDS];                         \
        for (int r = 0; r < ROUNDS; r++) {             \
            double from = now();                       \
            for (int i = 0; i < CALLS; i++) {          \
                body;                                  \
            }                                          \
            rounds[r] = (now() - from) / CALLS;        \
        }                                              \
        qsort(rounds, ROUNDS, sizeof(double), order);  \
        printf("%s %.1f\n", name, rounds[ROUNDS / 2]); \
    } while (0)

int main(void)
{
    CUcontext context;
    CUdeviceptr pointer;
    CUevent event;
    size_t left, total;
    double from = now();
    if (cuInit(0) != CUDA_SUCCESS) return 1;
    printf("init %.0f\n", now() - from);
    if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS ||
        cuEventCreate(&event, 0) != CUDA_SUCCESS)
        return 1;
    MEASURE("unhooked", cuCtxGetCurrent(&context));
    MEASURE("event_synchronize", cuEventSynchronize(event));
    MEASURE("refused_launch", cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    MEASURE("refused_graph", cuGraphLaunch(NULL, NULL));
    MEASURE("total", cuDeviceTotalMem(&total, 0));
    MEASURE("info", cuMemGetInfo(&left, &total));
    MEASURE("alloc_refused_by_driver", cuMemAllocManaged(&pointer, 4096, 77));
    MEASURE("alloc_free", cuMemAlloc(&pointer, 4096); cuMemFree(pointer));
    MEASURE("refused", cuMemAlloc(&pointer, 1ull << 50));
    return 0;
}
