/*
 * One thread destroys contexts while another still uses their objects: it gets errors, and nothing is freed
 * twice.
 */
#include "sim_cuda_check.h"

#include <pthread.h>
#include <stdbool.h>

#define LEVELS 6
#define ARRAYS 4

static pthread_barrier_t together;
static CUcontext other;
static CUmodule code;
static CUfunction kernel;
static CUmipmappedArray images[ARRAYS];
static CUarray arrays[ARRAYS];
static bool over;
static int rounds;
static double lasts_s = 1e-4; /* duration of the destruction of a context */

static void *use(void *nothing)
{
    while (pthread_barrier_wait(&together), !over) {
        CUdeviceptr address;
        CUarray level;
        CUfunction f;
        int registers;
        size_t bytes;
        double until = now_s() + lasts_s * (rounds % 32) / 32; /* now early during the destruction, now late */
        while (now_s() < until) {
        }
        for (int i = 0; i < ARRAYS; i++) { /* all may be destroyed by now */
            cuMipmappedArrayGetLevel(&level, images[i], LEVELS - 1);
            cuMipmappedArrayDestroy(images[i]);
            cuArrayDestroy(arrays[i]);
            cuModuleGetGlobal_v2(&address, &bytes, code, "table");
            cuModuleGetFunction(&f, code, "saxpy");
            cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel);
        }
        cuModuleUnload(code);
        pthread_barrier_wait(&together);
    }
    return nothing;
}

/* It is current for this thread only while it is filled. */
static void fill(void)
{
    const CUDA_ARRAY3D_DESCRIPTOR image_of = {
        .Width = 64, .Height = 64, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    OK(cuCtxCreate_v2(&other, 0, 0));
    for (int i = 0; i < ARRAYS; i++) {
        OK(cuMipmappedArrayCreate(&images[i], &image_of, LEVELS));
        OK(cuArray3DCreate_v2(&arrays[i], &image_of));
    }
    OK(cuModuleLoadData(&code, image));
    OK(cuModuleGetFunction(&kernel, code, "iota"));
    OK(cuCtxPopCurrent_v2(NULL));
}

static void *use_in_it(void *nothing)
{
    OK(cuCtxSetCurrent(context));
    return use(nothing);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    start();
    size_t before = used_bytes();
    pthread_barrier_init(&together, NULL, 2);
    TRUE(pthread_create(&thread, NULL, use_in_it, NULL) == 0);
    for (rounds = argc > 1 ? atoi(argv[1]) : 1; rounds; rounds--) {
        fill();
        pthread_barrier_wait(&together);
        double began = now_s();
        OK(cuCtxDestroy_v2(other));
        lasts_s = now_s() - began;
        pthread_barrier_wait(&together);
    }
    over = true;
    pthread_barrier_wait(&together);
    pthread_join(thread, NULL);
    EQUAL(used_bytes(), before);
    return 0;
}
