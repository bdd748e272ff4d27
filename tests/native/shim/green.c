/*
 * A tenant's program that divides its card by green contexts: green COMMAND [NUMBER]. The Python tests read its
 * output.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB (1ull << 20)
#define TRY(call)                                           \
    do {                                                    \
        CUresult answer_ = (call);                          \
        if (answer_ != CUDA_SUCCESS) {                      \
            printf("%s answers %d\n", #call, (int)answer_); \
            exit(1);                                        \
        }                                                   \
    } while (0)

static CUresult green(CUgreenCtx *made, unsigned int sms)
{
    CUdevResource all, part;
    CUdevResourceDesc desc;
    unsigned int groups = 1;
    TRY(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    TRY(cuDevSmResourceSplitByCount(&part, &groups, &all, NULL, 0, sms));
    TRY(cuDevResourceGenerateDesc(&desc, &part, 1));
    return cuGreenCtxCreate(made, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM);
}

static void say_used(const char *when)
{
    size_t left, total;
    TRY(cuMemGetInfo(&left, &total));
    printf("%s %llu\n", when, (unsigned long long)(total - left) / MIB);
}

/* book: the charge in MiB as contexts are created and destroyed. */
static void book(void)
{
    CUgreenCtx a, b;
    CUcontext in_a, primary;
    CUdeviceptr pointer;
    TRY(green(&a, 32));
    TRY(cuCtxFromGreenCtx(&in_a, a));
    TRY(cuCtxSetCurrent(in_a));
    say_used("first");
    TRY(green(&b, 32));
    say_used("second");
    TRY(cuMemAlloc(&pointer, 8 * MIB));
    say_used("memory");
    TRY(cuGreenCtxDestroy(b));
    say_used("one");
    TRY(cuDevicePrimaryCtxRetain(&primary, 0));
    TRY(cuCtxSetCurrent(primary));
    TRY(cuGreenCtxDestroy(a));
    say_used("none");
    TRY(green(&a, 32));
    TRY(cuCtxFromGreenCtx(&in_a, a));
    TRY(cuCtxSetCurrent(in_a));
    TRY(cuDevicePrimaryCtxRelease(0));
    say_used("released");
    TRY(cuGreenCtxDestroy(a)); /* and with it the primary one, and its memory */
    TRY(cuDevicePrimaryCtxRetain(&primary, 0));
    TRY(cuCtxSetCurrent(primary));
    say_used("again");
    TRY(cuDevicePrimaryCtxRelease(0));
}

/* flood: create green contexts until one is refused. */
static void flood(void)
{
    CUgreenCtx made;
    int count = 0;
    CUresult answer;
    while ((answer = green(&made, 4)) == CUDA_SUCCESS && count < 1000)
        count++;
    printf("%d %d\n", count, (int)answer);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* spin SECONDS: kernels of 1 ms on streams of two green contexts; prints their number and duration. */
static void spin(double seconds)
{
    static const char text[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                               ".visible .entry spin_ns(.param .u64 ns)\n{\nret;\n}\n";
    CUgreenCtx g[2];
    CUstream stream[2];
    CUcontext current;
    CUmodule module;
    CUfunction function;
    unsigned long long ns = 1000000, count = 0;
    void *arguments[] = {&ns};
    for (int i = 0; i < 2; i++) {
        TRY(green(&g[i], 54));
        TRY(cuGreenCtxStreamCreate(&stream[i], g[i], CU_STREAM_NON_BLOCKING, -5));
    }
    int priority;
    TRY(cuCtxFromGreenCtx(&current, g[0]));
    TRY(cuCtxSetCurrent(current));
    TRY(cuModuleLoadData(&module, text));
    TRY(cuModuleGetFunction(&function, module, "spin_ns"));
    TRY(cuStreamGetPriority(stream[0], &priority));
    double began = now_s();
    for (; now_s() - began < seconds; count++) {
        TRY(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream[count % 2], arguments, NULL));
        if (count % 4 == 3) TRY(cuStreamSynchronize(stream[0]));
        if (count % 4 == 3) TRY(cuStreamSynchronize(stream[1]));
    }
    TRY(cuStreamSynchronize(stream[0]));
    TRY(cuStreamSynchronize(stream[1]));
    printf("%llu %f %d\n", count, now_s() - began, priority);
}

int main(int count, char **arguments)
{
    const char *what = count > 1 ? arguments[1] : "";
    TRY(cuInit(0));
    if (strcmp(what, "book") == 0) book();
    if (strcmp(what, "flood") == 0) flood();
    if (strcmp(what, "spin") == 0) spin(count > 2 ? atof(arguments[2]) : 1);
    return 0;
}
