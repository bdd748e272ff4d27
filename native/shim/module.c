/*
 * Hooks of modules and libraries: their variables are charged when the code is loaded.
 *
 * The driver places a module's global variables when it loads the module, or at their first use, and a program
 * can declare any number of bytes of them. An image is therefore read before the driver gets it, and the sum of
 * its variables for this device is reserved like an allocation: once, at load, and visible in cuMemGetInfo and
 * NVML from then on, whether the driver places them now or later. It is returned when the module is unloaded or
 * its context destroyed. A library belongs to no context and is charged on each device of the slice. What code
 * itself takes is in the agent's residual, as are the variables of an image that cannot be read here.
 */
#define _GNU_SOURCE
#include "shim/base.h"

#include "shim/allocation.h"
#include "shim/charge.h"
#include "shim/device.h"
#include "shim/ledger.h"
#include "shim/real.h"
#include "shim/start.h"

#include "image/image.h"
#include "image/parse.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint32_t device_sm(CUdevice ordinal)
{
    int major = 0, minor = 0;
    if (CB_REAL(cuDeviceGetAttribute) == NULL ||
        CB_REAL(cuDeviceGetAttribute)(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ordinal) !=
            CUDA_SUCCESS ||
        CB_REAL(cuDeviceGetAttribute)(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, ordinal) !=
            CUDA_SUCCESS)
        return 0;
    return (uint32_t)(major * 10 + minor);
}

/* Bytes of the variables of an image; 0 if the driver will refuse it or it is not understood. */
static uint64_t image_variable_bytes(const void *data, size_t limit, CUdevice ordinal)
{
    struct image *image;
    uint64_t total = 0;
    if (data == NULL || image_parse(data, limit, device_sm(ordinal), &image) != CUDA_SUCCESS) return 0;
    for (size_t i = 0; i < image->global_count; i++)
        if (__builtin_add_overflow(total, cb_cost(image->global[i].size), &total)) total = UINT64_MAX / 2;
    image_free(image);
    return total;
}

static uint64_t file_variable_bytes(const char *name, CUdevice ordinal)
{
    struct stat status;
    uint64_t total = 0;
    int fd = name != NULL ? open(name, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1;
    if (fd < 0) return 0;
    if (syscall(SYS_fstat, fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 4 &&
        status.st_size < 1l << 31) {
        void *data = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data != MAP_FAILED) {
            total = image_variable_bytes(data, (size_t)status.st_size, ordinal);
            munmap(data, (size_t)status.st_size);
        }
    }
    close(fd);
    return total;
}

static CUdevice current_ordinal(void)
{
    CUdevice ordinal = 0;
    return CB_REAL(cuCtxGetDevice)(&ordinal) == CUDA_SUCCESS ? ordinal : 0;
}

#define LOAD_MODULE(bytes, call)                                                              \
    do {                                                                                      \
        CB_ENTER();                                                                           \
        struct cb_allocation allocation = {.device = cb_device_charged(cb_device_current())}; \
        uint64_t cost = allocation.device >= 0 ? bytes : 0;                                   \
        if (cost == 0) return call;                                                           \
        if (!cb_allocation_begin(&allocation, cost)) return CUDA_ERROR_OUT_OF_MEMORY;         \
        CUresult result;                                                                      \
        CB_CALL_DRIVER(result, call);                                                         \
        cb_allocation_end(&allocation, result, CB_MODULE,                                     \
                          result == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*module : 0);         \
        return result;                                                                        \
    } while (0)

CUresult CUDAAPI cuModuleLoad(CUmodule *module, const char *fname)
{
    LOAD_MODULE(file_variable_bytes(fname, current_ordinal()), CB_REAL(cuModuleLoad)(module, fname));
}

CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *image)
{
    LOAD_MODULE(image_variable_bytes(image, 0, current_ordinal()), CB_REAL(cuModuleLoadData)(module, image));
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
                                    CUjit_option *options, void **optionValues)
{
    LOAD_MODULE(image_variable_bytes(image, 0, current_ordinal()),
                CB_REAL(cuModuleLoadDataEx)(module, image, numOptions, options, optionValues));
}

CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    LOAD_MODULE(image_variable_bytes(fatCubin, 0, current_ordinal()),
                CB_REAL(cuModuleLoadFatBinary)(module, fatCubin));
}

/* The entries are removed before the driver unloads: afterwards another thread may own the same handle. */
#define UNLOAD(kind, handle, call)                                                                           \
    do {                                                                                                     \
        struct cb_entry taken[CB_DEVICES_MAX];                                                               \
        unsigned count = 0;                                                                                  \
        CB_ENTER();                                                                                          \
        while (count < CB_DEVICES_MAX && cb_ledger_take(kind, (uint64_t)(uintptr_t)(handle), &taken[count])) \
            count++;                                                                                         \
        CUresult result = call;                                                                              \
        for (unsigned i = 0; i < count; i++) {                                                               \
            if (result == CUDA_SUCCESS)                                                                      \
                cb_uncharge(taken[i].device, taken[i].bytes);                                                \
            else                                                                                             \
                (void)cb_ledger_put(&taken[i]);                                                              \
        }                                                                                                    \
        return result;                                                                                       \
    } while (0)

CUresult CUDAAPI cuModuleUnload(CUmodule hmod)
{
    UNLOAD(CB_MODULE, hmod, CB_REAL(cuModuleUnload)(hmod));
}

/* Reserve on every charged device of the slice. Return false if that failed; then nothing is reserved. */
static bool reserve_on_all_devices(uint64_t cost)
{
    for (uint32_t device = 0; device < cb.device_count; device++) {
        if (cb_reserve(cb_device_charged((int)device), cost)) continue;
        while (device-- > 0)
            cb_cancel(cb_device_charged((int)device), cost);
        return false;
    }
    return true;
}

static void commit_on_all_devices(CUresult result, uint64_t cost, uint64_t key)
{
    for (uint32_t i = 0; i < cb.device_count; i++) {
        int device = cb_device_charged((int)i);
        if (device < 0) continue;
        if (result != CUDA_SUCCESS) {
            cb_cancel(device, cost);
            continue;
        }
        struct cb_entry entry = {.key = key, .bytes = cost, .device = device, .kind = CB_LIBRARY};
        (void)cb_ledger_put(&entry);
        cb_commit(device, cost);
    }
}

#define LOAD_LIBRARY(bytes, call)                                                                        \
    do {                                                                                                 \
        CB_ENTER();                                                                                      \
        uint64_t cost = cb_device_charged(0) >= 0 ? bytes : 0;                                           \
        if (cost == 0) return call;                                                                      \
        if (!reserve_on_all_devices(cost)) return CUDA_ERROR_OUT_OF_MEMORY;                              \
        CUresult result;                                                                                 \
        CB_CALL_DRIVER(result, call);                                                                    \
        commit_on_all_devices(result, cost, result == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*library : 0); \
        return result;                                                                                   \
    } while (0)

CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                                   void **jitOptionsValues, unsigned int numJitOptions,
                                   CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                   unsigned int numLibraryOptions)
{
    LOAD_LIBRARY(image_variable_bytes(code, 0, current_ordinal()),
                 CB_REAL(cuLibraryLoadData)(library, code, jitOptions, jitOptionsValues, numJitOptions,
                                            libraryOptions, libraryOptionValues, numLibraryOptions));
}

CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                                       void **jitOptionsValues, unsigned int numJitOptions,
                                       CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                       unsigned int numLibraryOptions)
{
    LOAD_LIBRARY(file_variable_bytes(fileName, current_ordinal()),
                 CB_REAL(cuLibraryLoadFromFile)(library, fileName, jitOptions, jitOptionsValues,
                                                numJitOptions, libraryOptions, libraryOptionValues,
                                                numLibraryOptions));
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary library)
{
    UNLOAD(CB_LIBRARY, library, CB_REAL(cuLibraryUnload)(library));
}
