/*
 * A program for tests of failures: it answers each line of input with one of output.
 *
 *   copies N      N times 16 MiB to the card and back: "same", "different", or the first result except
 *   success
 *   launches N    N kernels that write, then their data: the same answers
 *   busy MS       the same for many launches after a kernel of so many milliseconds and a call that waits for
 *   it at the driver
 *   sync, alloc   the result
 *   illegal       the result of waiting for a kernel that writes to an invalid address
 *   put VALUE     memory with that value in it: its address
 *   look ADDRESS  copy a word from there: the result, and the word
 */
#include "sim_cuda_check.h"

#define BYTES (16u << 20)

static unsigned int *here, *back;
static CUdeviceptr there;

static CUresult copies(int count, int *different)
{
    for (int round = 0; round < count; round++) {
        for (size_t i = 0; i < BYTES / 4; i++)
            here[i] = (unsigned int)(i * 2654435761u + (unsigned int)round);
        CUresult result = cuMemcpyHtoD_v2(there, here, BYTES);
        if (result == CUDA_SUCCESS) result = cuMemcpyDtoH_v2(back, there, BYTES);
        if (result != CUDA_SUCCESS) return result;
        if (memcmp(here, back, BYTES) != 0) *different = 1;
    }
    return CUDA_SUCCESS;
}

static CUresult launches(int count, int *different)
{
    int many = 1024;
    for (int i = 0; i < count; i++) {
        CUdeviceptr to = there + (CUdeviceptr)(i % 1024) * 4096;
        void *p[] = {&to, &many};
        CUresult result = cuLaunchKernel(iota, 4, 1, 1, 256, 1, 1, 0, NULL, p, NULL);
        if (result != CUDA_SUCCESS) return result;
    }
    CUresult result = cuMemcpyDtoH_v2(back, there, BYTES);
    for (int i = 0; i < 1024; i++) {
        for (int k = 0; k < 1024 && i < count; k++)
            *different |= back[i * 1024 + k] != (unsigned int)k;
    }
    return result;
}

static CUresult busy(unsigned long long ms, int *different)
{
    CUmodule some;
    CUresult result = cuModuleLoadData(&some, image);
    if (result != CUDA_SUCCESS) return result;
    spin(NULL, ms * 1000000);
    result = cuModuleUnload(some);
    return result == CUDA_SUCCESS ? launches(60000, different) : result;
}

static int say(CUresult result, int different)
{
    if (result != CUDA_SUCCESS) return printf("%d\n", result);
    return puts(different ? "different" : "same");
}

int main(void)
{
    char line[256];
    CUdeviceptr some;
    start();
    here = malloc(BYTES);
    back = malloc(BYTES);
    OK(cuMemAlloc_v2(&there, BYTES));
    for (puts("ready"), fflush(stdout); fgets(line, sizeof line, stdin); fflush(stdout)) {
        int different = 0;
        unsigned long long number = strtoull(line + strcspn(line, " \n"), NULL, 0);
        unsigned long long word = 0;
        if (strncmp(line, "copies", 6) == 0) {
            CUresult result = copies((int)number, &different);
            say(result, different);
        } else if (strncmp(line, "launches", 8) == 0) {
            CUresult result = launches((int)number, &different);
            say(result, different);
        } else if (strncmp(line, "busy", 4) == 0) {
            CUresult result = busy(number, &different);
            say(result, different);
        } else if (strncmp(line, "sync", 4) == 0) {
            printf("%d\n", cuCtxSynchronize());
        } else if (strncmp(line, "alloc", 5) == 0) {
            printf("%d\n", cuMemAlloc_v2(&some, 4096));
        } else if (strncmp(line, "illegal", 7) == 0) {
            count_up(NULL, 0x1000, 1024);
            printf("%d\n", cuCtxSynchronize());
        } else if (strncmp(line, "put", 3) == 0) {
            OK(cuMemAlloc_v2(&some, 4096));
            OK(cuMemcpyHtoD_v2(some, &number, sizeof number));
            printf("%llu\n", (unsigned long long)some);
        } else if (strncmp(line, "look", 4) == 0) {
            CUresult result = cuMemcpyDtoH_v2(&word, (CUdeviceptr)number, sizeof word);
            printf("%d %llu\n", result, word);
        }
    }
    return 0;
}
