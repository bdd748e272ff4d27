/*
 * Finds the driver in the ways that programs use, never by linking with it, and allocates more than the cap:
 * finder WAY BYTES. Prints the result of the allocation; 2 (out of memory) shows that the hook was called.
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef CUresult (*find_v1)(const char *, void **, int, cuuint64_t);
typedef CUresult (*find_v2)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static const char *way;
static void *library;

static void *find(const char *exported, const char *base, int version)
{
    void *function = NULL;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (strcmp(way, "default") == 0) return dlsym(RTLD_DEFAULT, exported);
    if (strcmp(way, "next") == 0) return dlsym(RTLD_NEXT, exported);
    if (strcmp(way, "versioned") == 0 && strcmp(exported, "cuMemAlloc_v2") == 0)
        return dlvsym(RTLD_DEFAULT, exported, "DRIVER_1");
    if (strcmp(way, "address_v1") == 0) {
        find_v1 get = (find_v1)dlsym(library, "cuGetProcAddress");
        return get != NULL && get(base, &function, version, 0) == CUDA_SUCCESS ? function : NULL;
    }
    if (strncmp(way, "address", 7) == 0) {
        cuuint64_t flags =
            strcmp(way, "address_ptsz") == 0 ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
        find_v2 first = (find_v2)dlsym(library, "cuGetProcAddress_v2"), get = NULL;
        /* The static runtime's way: it looks up cuGetProcAddress by cuGetProcAddress itself. */
        if (first == NULL || first("cuGetProcAddress", (void **)&get, 12000, flags, &status) != CUDA_SUCCESS)
            return NULL;
        if (get(base, &function, version, flags, &status) != CUDA_SUCCESS ||
            status != CU_GET_PROC_ADDRESS_SUCCESS)
            return NULL;
        return function;
    }
    if (strcmp(way, "lookup_versioned") == 0 || strcmp(way, "lookup_libc") == 0 ||
        strcmp(way, "lookup_next") == 0) {
        void *libc = dlopen("libc.so.6", RTLD_NOW);
        void *(*look)(void *, const char *);
        if (strcmp(way, "lookup_versioned") == 0)
            look = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        else if (strcmp(way, "lookup_next") == 0)
            look = (void *(*)(void *, const char *))dlsym(RTLD_NEXT, "dlsym");
        else
            look = (void *(*)(void *, const char *))dlsym(libc, "dlsym");
        return look != NULL ? look(library, exported) : NULL;
    }
    return dlsym(library, exported);
}

int main(int count, char **arguments)
{
    CUcontext context;
    CUdeviceptr pointer = 0;
    if (count < 3) return 2;
    way = arguments[1];
    size_t bytes = strtoull(arguments[2], NULL, 10);
    const char *file = count > 3 ? arguments[3] : "libcuda.so.1";
    if (strncmp(way, "namespace", 9) == 0)
        library = dlmopen(LM_ID_NEWLM, file, RTLD_NOW);
    else
        library = dlopen(file, RTLD_NOW | RTLD_GLOBAL | (strcmp(way, "deepbind") == 0 ? RTLD_DEEPBIND : 0));
    if (library == NULL) {
        printf("no library: %s\n", dlerror());
        return 1;
    }
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))find("cuInit", "cuInit", 2000);
    CUresult (*retain)(CUcontext *, CUdevice) = (CUresult(*)(CUcontext *, CUdevice))find(
        "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000);
    CUresult (*current)(CUcontext) = (CUresult(*)(CUcontext))find("cuCtxSetCurrent", "cuCtxSetCurrent", 4000);
    if (init == NULL || retain == NULL || current == NULL) {
        printf("not found\n");
        return 1;
    }
    CUresult result = init(0);
    if (result == CUDA_SUCCESS) result = retain(&context, 0);
    if (result == CUDA_SUCCESS) result = current(context);
    if (result != CUDA_SUCCESS) {
        printf("start %d\n", (int)result);
        return 1;
    }
    if (strcmp(way, "address_ptsz") == 0) {
        CUresult (*allocate)(CUdeviceptr *, size_t, CUstream) =
            (CUresult(*)(CUdeviceptr *, size_t, CUstream))find("cuMemAllocAsync_ptsz", "cuMemAllocAsync",
                                                               11020);
        result = allocate != NULL ? allocate(&pointer, bytes, NULL) : CUDA_ERROR_UNKNOWN;
    } else {
        CUresult (*allocate)(CUdeviceptr *, size_t) =
            (CUresult(*)(CUdeviceptr *, size_t))find("cuMemAlloc_v2", "cuMemAlloc", 3020);
        result = allocate != NULL ? allocate(&pointer, bytes) : CUDA_ERROR_UNKNOWN;
    }
    printf("%d\n", (int)result);
    return 0;
}
