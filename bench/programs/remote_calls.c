/*
 * Benchmark of calls of a remote driver: `remote_calls --kernels FILE.ptx --rounds N` prints one JSON object.
 *
 *   start_ms         from cuInit to the end of the first kernel; start_questions: answers waited for until
 *   then
 *   launch_ns        a launch to its caller, median of bursts of 1,000 into an idle connection; launch_p10_ns
 *   the fast ones
 *   launches_s       in a long sequence, including the wait for its end
 *   question_us      the median of copying 4 bytes from the card
 *   in_KIB, out_KIB  GiB/s of copies of that size, the best of several
 */
#define _GNU_SOURCE
#include <string.h>

#include "driver.h"

#define BURST 1000

static struct {
    size_t bytes;
    const struct {
        uint64_t commands, questions, sent_bytes, received_bytes, image_bytes;
    } *counters;
} const *own; /* NULL with a local driver */

static __typeof__(&cuMemcpyHtoD_v2) copy_in;
static __typeof__(&cuMemcpyDtoH_v2) copy_out;
static __typeof__(&cuGetExportTable) export_table;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static uint64_t questions(void)
{
    static const CUuuid id = {
        {(char)0xc0, (char)0xa1, (char)0xab, (char)0xa5, 0, 1, 0x4c, 0x6f, (char)0x9d, 0x2e, 0x5c, (char)0xa1, (char)0xab, 0x1e, 0, 1}};
    const void *table = NULL;
    if (!own && export_table(&table, &id) == CUDA_SUCCESS) own = table;
    return own ? own->counters->questions : 0;
}

static CUfunction function;

static void launch(void)
{
    unsigned long long ns = 0;
    void *arguments[] = {&ns};
    CHECK(d_cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
}

static void launches(int rounds)
{
    double *each = calloc((size_t)rounds, sizeof *each);
    for (int i = 0; i < rounds; i++) {
        CHECK(d_cuCtxSynchronize());
        uint64_t began = now_ns();
        for (int k = 0; k < BURST; k++)
            launch();
        each[i] = (double)(now_ns() - began) / BURST;
    }
    CHECK(d_cuCtxSynchronize());
    qsort(each, (size_t)rounds, sizeof *each, by_value);
    printf("\"launch_ns\": %.1f, \"launch_p10_ns\": %.1f, ", each[rounds / 2], each[rounds / 10]);
    uint64_t began = now_ns();
    for (int i = 0; i < rounds * 4 * BURST; i++)
        launch();
    CHECK(d_cuCtxSynchronize());
    printf("\"launches_s\": %.0f, ", rounds * 4.0 * BURST / (double)(now_ns() - began) * 1e9);
}

static void asking(CUdeviceptr there, int rounds)
{
    double *each = calloc((size_t)rounds, sizeof *each);
    unsigned int word;
    for (int i = 0; i < rounds; i++) {
        uint64_t began = now_ns();
        CHECK(copy_out(&word, there, sizeof word));
        each[i] = (double)(now_ns() - began) / 1000;
    }
    qsort(each, (size_t)rounds, sizeof *each, by_value);
    printf("\"question_us\": %.2f, ", each[rounds / 2]);
}

static void copies(CUdeviceptr there, char *here, size_t bytes)
{
    int count = bytes < 1 << 20 ? 64 : 4;
    double in = 0, out = 0;
    for (int i = 0; i < 4; i++) {
        uint64_t began = now_ns();
        for (int k = 0; k < count; k++)
            CHECK(copy_in(there, here, bytes));
        CHECK(copy_out(here, there, 4)); /* incoming copies are not waited for, so far */
        double rate = (double)bytes * count / (double)(now_ns() - began) * 1e9 / (1 << 30);
        if (i && rate > in) in = rate;
        began = now_ns();
        for (int k = 0; k < count; k++)
            CHECK(copy_out(here, there, bytes));
        rate = (double)bytes * count / (double)(now_ns() - began) * 1e9 / (1 << 30);
        if (i && rate > out) out = rate;
    }
    printf("\"in_%zu\": %.3f, \"out_%zu\": %.3f, ", bytes >> 10, in, bytes >> 10, out);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {4 << 10, 64 << 10, 1 << 20, 64 << 20};
    if (argc != 5 || strcmp(argv[1], "--kernels") != 0 || strcmp(argv[3], "--rounds") != 0) return 2;
    int rounds = atoi(argv[4]);
    if (rounds < 10 || rounds > 1000000) return 2;
    CUcontext context;
    CUmodule module;
    CUdeviceptr there;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    driver_open();
    copy_in = (__typeof__(copy_in))dlsym(library, "cuMemcpyHtoD_v2");
    copy_out = (__typeof__(copy_out))dlsym(library, "cuMemcpyDtoH_v2");
    export_table = (__typeof__(export_table))dlsym(library, "cuGetExportTable");
    uint64_t began = now_ns();
    CHECK(d_cuInit(0));
    CHECK(d_cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(d_cuCtxSetCurrent(context));
    module = load_kernels(argv[2]);
    CHECK(d_cuModuleGetFunction(&function, module, "spin_ns"));
    launch();
    CHECK(d_cuCtxSynchronize());
    printf("{\"start_ms\": %.2f, \"start_questions\": %llu, ", (double)(now_ns() - began) / 1e6,
           (unsigned long long)questions());
    char *here = malloc(64 << 20);
    memset(here, 1, 64 << 20);
    CHECK(d_cuMemAlloc(&there, 64 << 20));
    CHECK(copy_in(there, here, 64 << 20));
    asking(there, rounds * 40);
    launches(rounds);
    for (int i = 0; i < 4; i++)
        copies(there, here, sizes[i]);
    printf("\"rounds\": %d}\n", rounds);
    return 0;
}
