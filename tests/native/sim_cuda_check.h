/*
 * Common header of the programs that test the simulated CUDA driver: checks with error messages, images, and a
 * table of named checks of which the command line selects one.
 */
#ifndef SIM_CUDA_CHECK_H
#define SIM_CUDA_CHECK_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPECT(call, wanted)                                                                               \
    do {                                                                                                   \
        CUresult result_ = (call);                                                                         \
        if (result_ != (wanted)) {                                                                         \
            fprintf(stderr, "%s:%d: %s gave %d, wanted %d\n", __FILE__, __LINE__, #call, result_, wanted); \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)
#define OK(call) EXPECT(call, CUDA_SUCCESS)
#define TRUE(condition)                                                             \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                \
        }                                                                           \
    } while (0)
#define EQUAL(a, b)                                                                                 \
    do {                                                                                            \
        unsigned long long a_ = (unsigned long long)(a), b_ = (unsigned long long)(b);              \
        if (a_ != b_) {                                                                             \
            fprintf(stderr, "%s:%d: %s is %llu, %s is %llu\n", __FILE__, __LINE__, #a, a_, #b, b_); \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

static const char image[] =
    ".version 8.0\n.target sm_70\n.address_size 64\n"
    "// a comment with .entry nothing (\n"
    ".visible .global .align 4 .b8 table[64];\n"
    ".visible .entry iota(.param .u64 p0, .param .u32 p1) { ret; }\n"
    ".visible .entry spin_ns(.param .u64 p0) { ret; }\n"
    ".visible .entry _Z10vector_addPKfS0_Pfi(\n"
    "    .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u32 p3)\n"
    ".maxntid 512, 1, 1 { .reg .b32 %r<4>; { ret; } }\n"
    ".visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u32 n) { ret; }\n"
    ".visible .entry stranger(.param .align 8 .b8 p0[24], .param .u8 p1)\n"
    "{ .reg .b32 %r; .reg .b64 %rd; mov.u64 %rd, table; suld.b.1d.b32.trap {%r}, [%rd, {%r}]; ret; }\n"
    ".visible .entry iota_but_other(.param .u64 p0) { ret; }\n";

#define MAYBE_UNUSED __attribute__((unused))

static CUcontext context MAYBE_UNUSED;
static CUmodule module MAYBE_UNUSED;
static CUfunction iota MAYBE_UNUSED, spin_ns MAYBE_UNUSED, vector_add MAYBE_UNUSED, saxpy MAYBE_UNUSED;

static inline CUfunction function(const char *name)
{
    CUfunction f;
    OK(cuModuleGetFunction(&f, module, name));
    return f;
}

static inline void start(void)
{
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, image));
    iota = function("iota");
    spin_ns = function("spin_ns");
    vector_add = function("_Z10vector_addPKfS0_Pfi");
    saxpy = function("saxpy");
}

static inline size_t used_bytes(void)
{
    size_t free_bytes, total;
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    return total - free_bytes;
}

static inline void spin(CUstream s, unsigned long long ns)
{
    void *p[] = {&ns};
    OK(cuLaunchKernel(spin_ns, 1, 1, 1, 1, 1, 1, 0, s, p, NULL));
}

static inline void count_up(CUstream s, CUdeviceptr to, int n)
{
    void *p[] = {&to, &n};
    OK(cuLaunchKernel(iota, (unsigned)(n + 255) / 256, 1, 1, 256, 1, 1, 0, s, p, NULL));
}

static inline double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct check {
    const char *name;
    void (*run)(void);
};

static inline int run_check(const struct check *checks, size_t count, int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < count; i++) {
        if (strcmp(checks[i].name, argv[1]) == 0) {
            checks[i].run();
            return 0;
        }
    }
    fprintf(stderr, "no check of that name\n");
    return 2;
}

#endif
