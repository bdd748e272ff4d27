/*
 * The real functions: the C library's dlsym and dlopen, and the driver's own functions behind the hooks.
 *
 * The driver's libraries are opened by soname on the first call, so LD_LIBRARY_PATH and the libraries that the
 * program has already loaded decide which are used, as without the shim. A symbol looked up through their
 * handle is searched in that library and its dependencies only, hence never found in the shim itself; this is
 * checked nevertheless.
 */
#define _GNU_SOURCE
#include "shim/real.h"

#include "shim/dlreal.h"

#include <dlfcn.h>
#include <string.h>

struct cb_real cb_real;

static const struct {
    const char *name;
    void **real;
} functions[] = {
#define CB_NAME(name) {#name, (void **)&cb_real.name},
#include "shim/hooks.inc"
#undef CB_NAME
#define HELPER(name) {#name, (void **)&cb_real.name}
    HELPER(cuCtxGetDevice),
    HELPER(cuDeviceGetAttribute),
    HELPER(cuDeviceGetCount),
    HELPER(cuDeviceGetUuid),
    HELPER(cuDeviceGetUuid_v2),
    HELPER(cuMemPoolGetAttribute),
    HELPER(cuDeviceGetMemPool),
    HELPER(cuStreamIsCapturing),
    HELPER(cuStreamIsCapturing_ptsz),
    HELPER(cuDeviceGetGraphMemAttribute),
    HELPER(cuStreamGetCtx),
    HELPER(cuGraphGetNodes),
    HELPER(cuGraphNodeGetType),
    HELPER(cuGraphMemAllocNodeGetParams),
    HELPER(cuGraphChildGraphNodeGetGraph),
    HELPER(cuCtxFromGreenCtx),
    HELPER(cuCtxGetCurrent),
    HELPER(cuEventCreate),
    HELPER(cuEventDestroy_v2),
    HELPER(cuEventRecord),
    HELPER(cuEventRecord_ptsz),
    HELPER(cuEventQuery),
    HELPER(cuEventElapsedTime),
    HELPER(cuThreadExchangeStreamCaptureMode),
    HELPER(cuMemAdvise),
    HELPER(cuMemAdvise_v2),
    HELPER(cuDevicePrimaryCtxGetState),
    HELPER(nvmlDeviceGetUUID),
#undef HELPER
};

/* One byte for each hook: the size is the number of hooks, which come first among the functions. */
static const char hooked_names[] = {
#define CB_NAME(name) 0,
#include "shim/hooks.inc"
#undef CB_NAME
};

static int cuda_loaded, nvml_loaded;

/* Address of this library, as the linker lays it out. */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));

static bool address_is_in_shim(const void *address)
{
    return (const char *)address >= __ehdr_start && (const char *)address < _end;
}

/*
 * Placeholder for a function that this driver does not have. Its hook is never returned to a program; a program
 * that is linked with the name and calls it gets an error instead of a crash.
 */
static int absent_cuda(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

static int absent_nvml(void)
{
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

bool cb_real_is_absent(const void *function)
{
    return function == NULL || function == (const void *)absent_cuda || function == (const void *)absent_nvml;
}

void *cb_real_symbol(void *handle, const char *name)
{
    cb_dl_find();
    return ((void *(*)(void *, const char *))cb_dl.dlsym)(handle, name);
}

/*
 * No lock: dlopen of one library and the look-ups in it give every thread the same answers, and a lock held
 * across dlopen would deadlock with a library whose constructor calls CUDA while it holds the linker's own
 * lock.
 */
static bool driver_load(int *loaded, const char *soname, const char *prefix)
{
    int state = __atomic_load_n(loaded, __ATOMIC_ACQUIRE);
    if (CB_LIKELY(state == 1)) return true;
    cb_dl_find();
    void *handle = ((void *(*)(const char *, int))cb_dl.dlopen)(soname, RTLD_LAZY | RTLD_LOCAL);
    if (handle == NULL) return false;
    size_t length = strlen(prefix);
    for (unsigned i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        if (strncmp(functions[i].name, prefix, length) != 0) continue;
        void *real = cb_real_symbol(handle, functions[i].name);
        if (address_is_in_shim(real)) {
            cb_say("%s resolves to the shim itself", soname);
            return false;
        }
        bool hooked = i < sizeof(hooked_names) / sizeof(hooked_names[0]);
        *functions[i].real = real != NULL || !hooked ? real
                             : prefix[0] == 'c'      ? (void *)absent_cuda
                                                     : (void *)absent_nvml;
    }
    __atomic_store_n(loaded, 1, __ATOMIC_RELEASE);
    return true;
}

bool cb_load_cuda(void)
{
    return driver_load(&cuda_loaded, "libcuda.so.1", "cu");
}

bool cb_load_nvml(void)
{
    return driver_load(&nvml_loaded, "libnvidia-ml.so.1", "nvml");
}
