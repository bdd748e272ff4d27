/*
 * Checks of managed memory that does not fit: resident memory is charged, touched memory is brought in at the
 * speed of the link, and the least recently used is evicted.
 */
#include "sim_cuda_check.h"

#include <math.h>
#include <sys/wait.h>

#define GIB (1ull << 30)
#define TRIES 8

static const char sweep_image[] =
    ".version 8.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry sweep(.param .u64 p0, .param .u64 p1) { ret; }\n";
static CUfunction sweep_kernel;

static void start_sweeping(void)
{
    CUmodule sweeps;
    start();
    OK(cuModuleLoadData(&sweeps, sweep_image));
    OK(cuModuleGetFunction(&sweep_kernel, sweeps, "sweep"));
}

/* Milliseconds that the card takes to read so much. */
static double sweep(CUdeviceptr p, size_t bytes)
{
    float ms;
    CUevent before, after;
    void *arguments[] = {&p, &bytes};
    OK(cuEventCreate(&before, 0));
    OK(cuEventCreate(&after, 0));
    OK(cuEventRecord(before, NULL));
    OK(cuLaunchKernel(sweep_kernel, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
    OK(cuEventRecord(after, NULL));
    OK(cuEventSynchronize(after));
    OK(cuEventElapsedTime(&ms, before, after));
    return (double)ms;
}

/* The same for resident memory, the minimum of several: a busy machine only adds to it. */
static double quickest(CUdeviceptr p, size_t bytes)
{
    double least = 1e9;
    for (int i = 0; i < TRIES; i++) least = fmin(least, sweep(p, bytes));
    return least;
}

static CUdeviceptr managed(size_t bytes)
{
    CUdeviceptr p;
    OK(cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL));
    return p;
}

/* T4: 14.5 GiB for programs. */
static void evicted(void)
{
    start_sweeping();
    size_t base = used_bytes();
    double resident = 1e9, first = 1e9, back = 1e9, moved = 0;
    for (int i = 0; i < 3; i++) {
        CUdeviceptr a = managed(8 * GIB);
        EQUAL(used_bytes() - base, 8 * GIB);
        CUdeviceptr b = managed(8 * GIB);
        size_t full = used_bytes();
        TRUE(full - base < 16 * GIB && full - base > 14 * GIB);
        moved = (double)(8 * GIB - (full - base - 8 * GIB)) / 1e6;
        resident = fmin(resident, sweep(a, 8 * GIB));
        first = fmin(first, sweep(b, 8 * GIB)); /* the rest of b was never written: only a is written back */
        EQUAL(used_bytes(), full);
        back = fmin(back, sweep(a, 8 * GIB)); /* what was evicted comes back, and as much of b goes */
        if (i == 0) TRUE(quickest(a, 8 * GIB) < resident + 1);
        OK(cuMemFree_v2(a));
        OK(cuMemFree_v2(b));
        EQUAL(used_bytes(), base);
    }
    TRUE(resident < 40); /* at the card's own bandwidth */
    TRUE(first > resident + moved / 16 && first < resident + moved / 8);
    TRUE(back > resident + 2 * moved / 16 && back < resident + 2 * moved / 8);
}

static void more_than_the_card(void)
{
    start_sweeping();
    double first = 1e9, again = 1e9, part = 1e9;
    for (int i = 0; i < 2; i++) {
        CUdeviceptr p = managed(16 * GIB);
        first = fmin(first, sweep(p, 16 * GIB));
        again = fmin(again, sweep(p, 16 * GIB));
        part = fmin(part, sweep(p, 4 * GIB));
        OK(cuMemFree_v2(p));
    }
    TRUE(again >= first && again > 1000); /* all of it passes through the card */
    TRUE(part < 40);
}

static void plain_memory_has_precedence(void)
{
    CUdeviceptr p, plain;
    start_sweeping();
    p = managed(12 * GIB);
    OK(cuMemAlloc_v2(&plain, 8 * GIB));
    EXPECT(cuMemAlloc_v2(&plain, 8 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
    (void)sweep(p, 12 * GIB);
}

static void prefetched(void)
{
    start_sweeping();
    CUstream s;
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST}, card = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    OK(cuStreamCreate(&s, 0));
    size_t base = used_bytes();
    CUdeviceptr p = managed(GIB);
    double least = 1e9;
    for (int i = 0; i < TRIES; i++) {
        OK(cuMemPrefetchAsync_v2(p, GIB, host, 0, s));
        OK(cuStreamSynchronize(s));
        EQUAL(used_bytes(), base);
        OK(cuMemPrefetchAsync_v2(p, GIB, card, 0, s));
        OK(cuStreamSynchronize(s));
        EQUAL(used_bytes() - base, GIB);
        least = fmin(least, sweep(p, GIB));
    }
    TRUE(least < 10);
    OK(cuMemFree_v2(p));
}

static void written_by_the_host(void)
{
    start_sweeping();
    CUstream s;
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};
    static char content[1 << 20];
    OK(cuStreamCreate(&s, 0));
    CUdeviceptr full, p = 0;
    double first = 1e9, second = 1e9;
    for (int i = 0; i < TRIES; i++) {
        if (i) OK(cuMemFree_v2(p));
        OK(cuMemAlloc_v2(&full, 14 * GIB)); /* so that the next allocation is not resident */
        p = managed(GIB);
        OK(cuMemFree_v2(full));
        OK(cuMemcpyHtoD_v2(p, content, sizeof content));
        first = fmin(first, sweep(p, GIB));
        second = fmin(second, sweep(p, GIB));
    }
    TRUE(first > second + 0.05 && first < second + 1); /* the MiB that was written, not the whole */
    OK(cuMemPrefetchAsync_v2(p, GIB, host, 0, s));
    OK(cuStreamSynchronize(s));
    TRUE(sweep(p, GIB) > second + 50);
}

/* Two processes alternate: each finds its memory evicted by the other. */
static void two_processes(void)
{
    int ready[2], go[2];
    char c;
    OK(pipe(ready) == 0 && pipe(go) == 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
    pid_t child = fork();
    start_sweeping();
    CUdeviceptr p = managed(10 * GIB);
    if (child == 0) {
        TRUE(read(go[0], &c, 1) == 1);
        (void)sweep(p, 10 * GIB);
        TRUE(write(ready[1], "", 1) == 1);
        TRUE(read(go[0], &c, 1) == 1);
        _exit(sweep(p, 10 * GIB) > 500 ? 0 : 1);
    }
    (void)sweep(p, 10 * GIB);
    TRUE(write(go[1], "", 1) == 1);
    int status;
    TRUE(read(ready[0], &c, 1) == 1);
    double back = sweep(p, 10 * GIB);
    TRUE(write(go[1], "", 1) == 1);
    TRUE(waitpid(child, &status, 0) == child && status == 0);
    TRUE(back > 500);
    size_t total, left;
    OK(cuMemGetInfo_v2(&left, &total)); /* the dead process's memory is free again */
    (void)sweep(p, 10 * GIB);
    TRUE(quickest(p, 10 * GIB) < 60);
}

int main(int argc, char **argv)
{
    static const struct check checks[] = {
        {"evicted", evicted},
        {"more_than_the_card", more_than_the_card},
        {"plain_memory_has_precedence", plain_memory_has_precedence},
        {"prefetched", prefetched},
        {"written_by_the_host", written_by_the_host},
        {"two_processes", two_processes},
    };
    return run_check(checks, sizeof checks / sizeof checks[0], argc, argv);
}
