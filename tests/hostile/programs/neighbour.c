/*
 * An honest tenant beside hostile ones: keeps a card as busy as its share permits, and allocates and frees
 * memory all the while.
 *
 *   neighbour STATS KERNELS KERNEL_US HOLD_MIB BLOCK_MIB
 *
 * Its use of the card and of its memory is in the file STATS, which it maps: struct stats below.
 */
#include <pthread.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

#define DEPTH 8

struct stats {
    uint64_t launches; /* kernels that are done */
    uint64_t taken;    /* allocations that succeeded */
    uint64_t refused;  /* allocations that failed */
    uint64_t failed;   /* other calls that failed, the last error */
};

static volatile struct stats *stats;
static CUcontext context;
static size_t block_bytes;

static void *take_and_give(void *nothing)
{
    (void)nothing;
    CHECK(d_cuCtxSetCurrent(context));
    for (;;) {
        CUdeviceptr pointer;
        if (d_cuMemAlloc(&pointer, block_bytes) == CUDA_SUCCESS) {
            stats->taken++;
            CHECK(d_cuMemFree(pointer));
        } else {
            stats->refused++;
        }
        usleep(5000);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 6) return 64;
    int file = open(argv[1], O_RDWR);
    stats = mmap(NULL, sizeof *stats, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (stats == MAP_FAILED) return 65;
    unsigned long long kernel_ns = strtoull(argv[3], NULL, 10) * 1000;
    block_bytes = (size_t)atoll(argv[5]) << 20;
    driver_open();
    CHECK(d_cuInit(0));
    CUdevice device;
    CHECK(d_cuDeviceGet(&device, 0));
    CHECK(d_cuDevicePrimaryCtxRetain(&context, device));
    CHECK(d_cuCtxSetCurrent(context));
    CUfunction function;
    CHECK(d_cuModuleGetFunction(&function, load_kernels(argv[2]), "spin_ns"));
    CUdeviceptr held;
    CHECK(d_cuMemAlloc(&held, (size_t)atoll(argv[4]) << 20));
    CUstream stream;
    CUevent done[DEPTH];
    CHECK(d_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < DEPTH; i++)
        CHECK(d_cuEventCreate(&done[i], CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC));
    pthread_t thread;
    if (pthread_create(&thread, NULL, take_and_give, NULL) != 0) return 66;
    printf("ready\n");
    fflush(stdout);
    void *arguments[] = {&kernel_ns};
    for (uint64_t launched = 0;; launched++) {
        if (launched >= DEPTH) {
            CHECK(d_cuEventSynchronize(done[launched % DEPTH]));
            stats->launches++;
        }
        CHECK(d_cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
        CHECK(d_cuEventRecord(done[launched % DEPTH], stream));
    }
}
