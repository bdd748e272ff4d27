/*
 * Images of code: sent once, and described by the worker in the answer, so that nothing about a kernel is asked again.
 */
#include "image/bytes.h"
#include "remote/client/function.h"
#include "remote/client/object.h"
#include "remote_wrapped.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct image {
    struct cb_function *functions;
};

/* One after another: the worker puts the parts together. */
static CUresult send_image(const char *image, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += CB_BULK_MAX) {
        struct cb_call call;
        size_t part = bytes - at < CB_BULK_MAX ? bytes - at : CB_BULK_MAX;
        CB_OK(cb_call_begin(&call, CB_OP_IMAGE, CB_ANYWHERE));
        cb_put_word(&call, at);
        cb_put_word(&call, bytes);
        cb_put_word(&call, part);
        CB_OK(cb_call_send_with(&call, image + at, part));
    }
    return CUDA_SUCCESS;
}

static CUresult load(enum cb_kind kind, const void *image, size_t limit, uint64_t *out)
{
    struct cb_call call;
    size_t bytes = image_bytes(&image, limit);
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    if (!bytes) return CUDA_ERROR_INVALID_IMAGE;
    struct image *i = calloc(1, sizeof *i);
    if (!i) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&one_at_a_time);
    CUresult result = send_image(image, bytes);
    if (result == CUDA_SUCCESS) result = cb_call_begin(&call, CB_OP_IMAGE_LOAD, CB_ANYWHERE);
    uint64_t id = 0;
    if (result == CUDA_SUCCESS) {
        id = cb_new_object(&call, kind);
        cb_put_word(&call, id);
        cb_put_word(&call, bytes);
        result = cb_call_ask(&call);
    }
    pthread_mutex_unlock(&one_at_a_time);
    if (result != CUDA_SUCCESS) {
        cb_drop_object(id);
        free(i);
        return result;
    }
    for (uint64_t count = cb_take_word(&call); count; count--) {
        struct cb_function *f = cb_function_described(&call);
        if (!f) break;
        f->next = i->functions;
        i->functions = f;
    }
    cb_call_end(&call);
    *cb_object_data(id, kind) = i;
    *out = id;
    return CUDA_SUCCESS;
}

/* ---- modules ---- */

static CUresult load_module(CUmodule *module, const void *image, size_t limit)
{
    uint64_t id;
    CUcontext current = NULL;
    CB_OK(cuCtxGetCurrent(&current));
    if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    CB_OK(load(CB_KIND_MODULE, image, limit, &id));
    *module = (CUmodule)(uintptr_t)id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    return load_module(module, image, 0);
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    return load_module(module, fatCubin, 0);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
                                   CUjit_option *options, void **optionValues)
{
    if (numOptions && (!options || !optionValues)) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < numOptions; i++) {
        if ((options[i] == CU_JIT_INFO_LOG_BUFFER || options[i] == CU_JIT_ERROR_LOG_BUFFER) &&
            optionValues[i])
            *(char *)optionValues[i] = 0;
        if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES ||
            options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
            optionValues[i] = NULL;
    }
    return load_module(module, image, 0);
}

static CUresult map_file(const char *name, void **out, size_t *bytes)
{
    struct stat s;
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return CUDA_ERROR_FILE_NOT_FOUND;
    bool ok = fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_size > 0;
    *bytes = ok ? (size_t)s.st_size : 0;
    *out = ok ? mmap(NULL, *bytes + 1, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    close(fd);
    return *out == MAP_FAILED ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
    void *data;
    size_t bytes;
    if (!module || !fname) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(map_file(fname, &data, &bytes));
    CUresult result = load_module(module, data, bytes);
    munmap(data, bytes + 1);
    return result;
}

static CUresult find(enum cb_kind kind, uint64_t handle, const char *name, uint64_t *out)
{
    void **data = cb_object_data(handle, kind);
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!data) return CUDA_ERROR_INVALID_HANDLE;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    const struct image *i = *data;
    for (const struct cb_function *f = i ? i->functions : NULL; f; f = f->next) {
        if (strcmp(f->name, name)) continue;
        *out = f->id;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    uint64_t id;
    if (!hfunc) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(find(CB_KIND_MODULE, (uintptr_t)hmod, name, &id));
    *hfunc = (CUfunction)(uintptr_t)id;
    return CUDA_SUCCESS;
}

/* ---- libraries ---- */

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                                  void **jitOptionsValues, unsigned int numJitOptions,
                                  CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                  unsigned int numLibraryOptions)
{
    uint64_t id;
    (void)libraryOptionValues;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!library || !code || (numJitOptions && (!jitOptions || !jitOptionsValues)) ||
        (numLibraryOptions && !libraryOptions))
        return CUDA_ERROR_INVALID_VALUE;
    CB_OK(load(CB_KIND_LIBRARY, code, 0, &id));
    *library = (CUlibrary)(uintptr_t)id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                                      void **jitOptionsValues, unsigned int numJitOptions,
                                      CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                      unsigned int numLibraryOptions)
{
    void *data;
    size_t bytes;
    uint64_t id;
    (void)jitOptions;
    (void)jitOptionsValues;
    (void)numJitOptions;
    (void)libraryOptions;
    (void)libraryOptionValues;
    (void)numLibraryOptions;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!library || !fileName) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(map_file(fileName, &data, &bytes));
    CUresult result = load(CB_KIND_LIBRARY, data, bytes, &id);
    munmap(data, bytes + 1);
    if (result == CUDA_SUCCESS) *library = (CUlibrary)(uintptr_t)id;
    return result;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    uint64_t id;
    if (!pKernel) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(find(CB_KIND_LIBRARY, (uintptr_t)library, name, &id));
    *pKernel = (CUkernel)(uintptr_t)id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
    struct cb_function *f = cb_function_of((uintptr_t)kernel);
    CB_OK(cb_remote_cuKernelGetFunction(pFunc, kernel));
    if (f) cb_function_same((uintptr_t)*pFunc, f);
    return CUDA_SUCCESS;
}

/* ---- what is known of kernels ---- */

static CUresult name_of(const char **name, uint64_t handle)
{
    const struct cb_function *f = cb_function_of(handle);
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    *name = f->name;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetName(const char **name, CUfunction hfunc)
{
    return name_of(name, (uintptr_t)hfunc);
}

EXPORT CUresult cuKernelGetName(const char **name, CUkernel hfunc)
{
    return name_of(name, (uintptr_t)hfunc);
}

static CUresult parameter_of(uint64_t handle, size_t index, size_t *offset, size_t *size)
{
    const struct cb_function *f = cb_function_of(handle);
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (!offset || index >= f->parameters) return CUDA_ERROR_INVALID_VALUE;
    *offset = f->parameter[index].offset;
    if (size) *size = f->parameter[index].bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset, size_t *paramSize)
{
    return parameter_of((uintptr_t)func, paramIndex, paramOffset, paramSize);
}

EXPORT CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset,
                                     size_t *paramSize)
{
    return parameter_of((uintptr_t)kernel, paramIndex, paramOffset, paramSize);
}
