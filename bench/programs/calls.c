/*
 * Benchmark of the cost of a call: batches of one kind of call in turn, many rounds; prints the median of the
 * batches in ns per call for each kind, as one JSON object.
 *
 *   calls --kernels FILE.ptx --rounds 200
 */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>

#include "driver.h"

#define ROUNDS_MAX 2000
#define BATCH      256

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(double *values, int count, double part)
{
    qsort(values, (size_t)count, sizeof(double), by_value);
    return values[(int)(part * (count - 1))];
}

static CUfunction function;
static CUstream stream;

static double pass_through(void)
{
    CUdevice device;
    uint64_t began = now_ns();
    for (int i = 0; i < BATCH; i++)
        d_cuCtxGetDevice(&device);
    return (double)(now_ns() - began) / BATCH;
}

static double attribute(void)
{
    int value;
    uint64_t began = now_ns();
    for (int i = 0; i < BATCH; i++)
        d_cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
    return (double)(now_ns() - began) / BATCH;
}

static double launch(void)
{
    unsigned long long ns = 100;
    void *arguments[] = {&ns};
    CHECK(d_cuStreamSynchronize(stream));
    uint64_t began = now_ns();
    for (int i = 0; i < 32; i++)
        CHECK(d_cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
    return (double)(now_ns() - began) / 32;
}

static double allocation(void)
{
    CUdeviceptr memory[BATCH / 8];
    uint64_t began = now_ns();
    for (int i = 0; i < BATCH / 8; i++)
        CHECK(d_cuMemAlloc(&memory[i], 4096));
    double each = (double)(now_ns() - began) / (BATCH / 8);
    for (int i = 0; i < BATCH / 8; i++)
        CHECK(d_cuMemFree(memory[i]));
    return each;
}

static double information(void)
{
    size_t unused, total;
    uint64_t began = now_ns();
    for (int i = 0; i < BATCH / 4; i++)
        CHECK(d_cuMemGetInfo(&unused, &total));
    return (double)(now_ns() - began) / (BATCH / 4);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        double (*batch)(void);
    } kinds[] = {{"pass_through", pass_through},
                 {"attribute", attribute},
                 {"launch", launch},
                 {"allocation", allocation},
                 {"memory_info", information}};
    static double values[5][ROUNDS_MAX];
    if (argc < 5) return 64;
    int rounds = atoi(argv[4]);
    if (rounds < 1 || rounds > ROUNDS_MAX) return 64;
    driver_open();
    uint64_t began = now_ns();
    CHECK(d_cuInit(0));
    CUcontext context;
    CHECK(d_cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(d_cuCtxSetCurrent(context));
    double start_us = (double)(now_ns() - began) / 1000;
    CUmodule module = load_kernels(argv[2]);
    CHECK(d_cuModuleGetFunction(&function, module, "spin_ns"));
    CHECK(d_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int round = -5; round < rounds; round++)
        for (int kind = 0; kind < 5; kind++) {
            double value = kinds[kind].batch();
            if (round >= 0) values[kind][round] = value;
        }
    CHECK(d_cuCtxSynchronize());
    printf("{\"start_us\": %.1f", start_us);
    for (int kind = 0; kind < 5; kind++) {
        printf(", \"%s\": %.2f", kinds[kind].name, percentile(values[kind], rounds, 0.5));
        printf(", \"%s_p10\": %.2f", kinds[kind].name, percentile(values[kind], rounds, 0.1));
    }
    printf("}\n");
    return 0;
}
