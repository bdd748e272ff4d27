/*
 * A tenant that needs much memory: it allocates so many pieces and then reads all of them, again and again.
 *
 *   sweeper KERNELS.ptx PIECES MIB SWEEPS
 *
 * "ready" is printed when the memory is allocated; it begins when a line comes. The last line on stdout is a
 * JSON object.
 */
#define _GNU_SOURCE
#include "driver.h"

#define PIECES_MAX 4096

int main(int argc, char **argv)
{
    static CUdeviceptr piece[PIECES_MAX];
    if (argc < 5) return 64;
    int pieces = atoi(argv[2]), sweeps = atoi(argv[4]);
    size_t bytes = (size_t)atoi(argv[3]) << 20;
    if (pieces < 1 || pieces > PIECES_MAX) return 64;
    driver_open();
    CHECK(d_cuInit(0));
    CUcontext context;
    CHECK(d_cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(d_cuCtxSetCurrent(context));
    CUmodule module = load_kernels(argv[1]);
    CUfunction sweep;
    CHECK(d_cuModuleGetFunction(&sweep, module, "sweep"));
    for (int i = 0; i < pieces; i++)
        CHECK(d_cuMemAlloc(&piece[i], bytes));
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) return 1;
    uint64_t began = now_ns();
    for (int n = 0; n < sweeps; n++) {
        for (int i = 0; i < pieces; i++) {
            void *arguments[] = {&piece[i], &bytes};
            CHECK(d_cuLaunchKernel(sweep, 1024, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
        }
        CHECK(d_cuCtxSynchronize());
    }
    printf("{\"seconds\": %.3f, \"began_ns\": %llu, \"ended_ns\": %llu}\n", (double)(now_ns() - began) / 1e9,
           (unsigned long long)began, (unsigned long long)now_ns());
    return 0;
}
