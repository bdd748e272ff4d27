/*
 * The real functions: the C library's dlsym and dlopen, and the driver's own functions behind our hooks.
 *
 * The driver's libraries are opened by soname on the first call, so LD_LIBRARY_PATH and what the program has
 * already loaded decide which they are, as without us. A symbol looked up through their handle is searched in
 * that library and its dependencies only, hence never found in ourselves; that is checked all the same.
 */
#define _GNU_SOURCE
#include "shim/shim.h"

#include "shim/dl.h"

#include <dlfcn.h>
#include <string.h>

struct cb_real cb_real;

const struct cb_hook cb_hooks[] = {
#define CB_NAME(name) {#name, (void *)name, (void **)&cb_real.name},
#include "shim/hooks.inc"
#undef CB_NAME
#define CB_NAME(name) {#name, (void *)cb_nvml_denied, NULL},
#include "shim/denied.inc"
#undef CB_NAME
};
const unsigned cb_hook_count = sizeof(cb_hooks) / sizeof(cb_hooks[0]);

static const struct {
    const char *name;
    void **real;
} helpers[] = {
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
    HELPER(cuCtxGetCurrent),
    HELPER(cuEventCreate),
    HELPER(cuEventDestroy_v2),
    HELPER(cuEventRecord),
    HELPER(cuEventRecord_ptsz),
    HELPER(cuEventQuery),
    HELPER(cuEventElapsedTime),
    HELPER(cuThreadExchangeStreamCaptureMode),
    HELPER(cuDevicePrimaryCtxGetState),
    HELPER(nvmlDeviceGetUUID),
#undef HELPER
};

static int cuda_loaded, nvml_loaded;

/* What stands for a function that this driver does not have. Its hook is never handed out; a program that is
 * linked with the name and calls it all the same gets an answer instead of a crash. */
static int absent_cuda(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

static int absent_nvml(void)
{
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

bool cb_hook_served(const struct cb_hook *hook)
{
    return hook->real == NULL ||
           (*hook->real != NULL && *hook->real != (void *)absent_cuda && *hook->real != (void *)absent_nvml);
}

void *cb_real_symbol(void *handle, const char *name)
{
    cb_dl_find();
    return ((void *(*)(void *, const char *))cb_dl.dlsym)(handle, name);
}

/*
 * No lock: dlopen of one library and the look-ups in it give every thread the same answers, and a lock held
 * across dlopen would deadlock with a library whose constructor calls CUDA while it holds the linker's own.
 */
static bool load(int *loaded, const char *soname, const char *prefix)
{
    int state = __atomic_load_n(loaded, __ATOMIC_ACQUIRE);
    if (CB_LIKELY(state == 1)) return true;
    cb_dl_find();
    void *handle = ((void *(*)(const char *, int))cb_dl.dlopen)(soname, RTLD_LAZY | RTLD_LOCAL);
    if (handle == NULL) return false;
    size_t length = strlen(prefix);
    for (unsigned i = 0; i < sizeof(helpers) / sizeof(helpers[0]); i++)
        if (strncmp(helpers[i].name, prefix, length) == 0)
            *helpers[i].real = cb_real_symbol(handle, helpers[i].name);
    for (unsigned i = 0; i < cb_hook_count; i++) {
        if (cb_hooks[i].real == NULL || strncmp(cb_hooks[i].name, prefix, length) != 0) continue;
        void *real = cb_real_symbol(handle, cb_hooks[i].name);
        if (real == cb_hooks[i].hook) {
            cb_say("%s resolves to the shim itself", soname);
            return false;
        }
        *cb_hooks[i].real = real != NULL       ? real
                            : prefix[0] == 'c' ? (void *)absent_cuda
                                               : (void *)absent_nvml;
    }
    __atomic_store_n(loaded, 1, __ATOMIC_RELEASE);
    return true;
}

bool cb_load_cuda(void)
{
    return load(&cuda_loaded, "libcuda.so.1", "cu");
}

bool cb_load_nvml(void)
{
    return load(&nvml_loaded, "libnvidia-ml.so.1", "nvml");
}

const struct cb_hook *cb_hook_named(const char *name)
{
    for (unsigned i = 0; i < cb_hook_count; i++)
        if (strcmp(cb_hooks[i].name, name) == 0) return &cb_hooks[i];
    return NULL;
}

/* The plain name that cuGetProcAddress is asked for: no version, no per-thread suffix. */
static bool same_base(const char *exported, const char *base)
{
    size_t length = strlen(base);
    if (strncmp(exported, base, length) != 0) return false;
    const char *rest = exported + length;
    if (rest[0] == '_' && rest[1] == 'v' && rest[2] >= '1' && rest[2] <= '9' &&
        (rest[3] == 0 || rest[3] == '_'))
        rest += 3;
    return *rest == 0 || strcmp(rest, "_ptsz") == 0 || strcmp(rest, "_ptds") == 0;
}

/*
 * The hook in front of a real function. Two exports may share one body (an alias): then the one whose name
 * was asked for is meant, and among versions of that name any is right because one body has one ABI.
 */
const struct cb_hook *cb_hook_of_real(const void *address, const char *name)
{
    const struct cb_hook *found = NULL;
    for (unsigned i = 0; i < cb_hook_count; i++) {
        if (cb_hooks[i].real == NULL || *cb_hooks[i].real != address) continue;
        if (name == NULL || same_base(cb_hooks[i].name, name)) return &cb_hooks[i];
        if (found == NULL) found = &cb_hooks[i];
    }
    return found;
}
