/*
 * `image_program IMAGE module|library`: loads what nvcc made of image_kernels.cu through the driver API,
 * launches both kernels and checks every element of their results.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 1000

#define OK(call)                                                                 \
    do {                                                                         \
        CUresult code = (call);                                                  \
        if (code != CUDA_SUCCESS) {                                              \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, code); \
            exit(1);                                                             \
        }                                                                        \
    } while (0)
#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

static void *read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    CHECK(fseek(file, 0, SEEK_END) == 0);
    long size = ftell(file);
    rewind(file);
    char *text = calloc(1, (size_t)size + 1);
    CHECK(text != NULL && fread(text, 1, (size_t)size, file) == (size_t)size);
    fclose(file);
    return text;
}

static CUfunction from_library(CUlibrary library, const char *name)
{
    CUkernel kernel;
    CUfunction function;
    OK(cuLibraryGetKernel(&kernel, library, name));
    OK(cuKernelGetFunction(&function, kernel));
    return function;
}

static void check_parameters(CUfunction function, const size_t *offsets, size_t count)
{
    size_t offset, size;
    for (size_t i = 0; i < count; i++) {
        OK(cuFuncGetParamInfo(function, i, &offset, &size));
        CHECK(offset == offsets[i]);
    }
    CHECK(cuFuncGetParamInfo(function, count, &offset, &size) == CUDA_ERROR_INVALID_VALUE);
}

int main(int argc, char **argv)
{
    CUcontext context;
    CUfunction add, scale;
    CUdeviceptr a, c;
    float here[COUNT], factor = 3;
    int n = COUNT;
    CHECK(argc == 3);
    void *image = read_file(argv[1]);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    if (strcmp(argv[2], "library") == 0) {
        CUlibrary library;
        unsigned kernels = 0;
        OK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
        OK(cuLibraryGetKernelCount(&kernels, library));
        CHECK(kernels == 2);
        add = from_library(library, "vector_add");
        scale = from_library(library, "_Z5saxpyfPKfPfi");
    } else {
        CUmodule module;
        OK(cuModuleLoadData(&module, image));
        OK(cuModuleGetFunction(&add, module, "vector_add"));
        OK(cuModuleGetFunction(&scale, module, "_Z5saxpyfPKfPfi"));
        CHECK(cuModuleGetFunction(&(CUfunction){0}, module, "subtract") == CUDA_ERROR_NOT_FOUND);
    }
    check_parameters(add, (size_t[]){0, 8, 16, 24}, 4);
    check_parameters(scale, (size_t[]){0, 8, 16, 24}, 4);
    for (int i = 0; i < COUNT; i++)
        here[i] = (float)i;
    OK(cuMemAlloc_v2(&a, sizeof here));
    OK(cuMemAlloc_v2(&c, sizeof here));
    OK(cuMemcpyHtoD_v2(a, here, sizeof here));
    OK(cuLaunchKernel(add, 8, 1, 1, 128, 1, 1, 0, NULL, (void *[]){&a, &a, &c, &n}, NULL));
    OK(cuLaunchKernel(scale, 8, 1, 1, 128, 1, 1, 0, NULL, (void *[]){&factor, &a, &c, &n}, NULL));
    OK(cuMemcpyDtoH_v2(here, c, sizeof here));
    for (int i = 0; i < COUNT; i++)
        CHECK(here[i] == 5 * (float)i);
    puts("done");
    return 0;
}
