#include "remote/span/library.h"

struct library {
    CUlibrary in[CB_SPAN_MAX];
    bool alive;
};

struct kernel {
    size_t library;
    char *name;
    CUkernel in[CB_SPAN_MAX]; /* looked up when it is used first */
};

static pthread_mutex_t libraries_lock = PTHREAD_MUTEX_INITIALIZER;
static struct library *libraries;
static struct kernel *kernels;
static size_t library_count, kernel_count;

static uint64_t span_id(enum cb_kind kind, size_t number)
{
    return CB_OBJECT_TAG << 48 | (uint64_t)kind << 40 | (uint64_t)CB_SPAN_ALL << 32 | number;
}

static bool id_is_span_wide(uint64_t id, enum cb_kind kind)
{
    return id >> 32 == span_id(kind, 0) >> 32;
}

/* Requires the lock. */
static struct library *library_find(uint64_t id)
{
    bool is =
        id_is_span_wide(id, CB_KIND_LIBRARY) && (uint32_t)id < library_count && libraries[(uint32_t)id].alive;
    return is ? &libraries[(uint32_t)id] : NULL;
}

static struct kernel *kernel_find(uint64_t id)
{
    bool is = id_is_span_wide(id, CB_KIND_KERNEL) && (uint32_t)id < kernel_count;
    return is && libraries[kernels[(uint32_t)id].library].alive ? &kernels[(uint32_t)id] : NULL;
}

CUlibrary span_library(const struct span_session *s, CUlibrary library)
{
    if (!id_is_span_wide((uintptr_t)library, CB_KIND_LIBRARY)) return library;
    pthread_mutex_lock(&libraries_lock);
    const struct library *l = library_find((uintptr_t)library);
    CUlibrary found = l ? l->in[s->member - 1] : NULL;
    pthread_mutex_unlock(&libraries_lock);
    return found;
}

CUkernel span_kernel(const struct span_session *s, CUkernel kernel)
{
    if (!id_is_span_wide((uintptr_t)kernel, CB_KIND_KERNEL)) return kernel;
    CUkernel found = NULL;
    pthread_mutex_lock(&libraries_lock);
    struct kernel *k = kernel_find((uintptr_t)kernel);
    if (k && !k->in[s->member - 1]) {
        CUlibrary l = libraries[k->library].in[s->member - 1];
        if (!l || SPAN_CALL(s, cuLibraryGetKernel)(&found, l, k->name) == CUDA_SUCCESS)
            k->in[s->member - 1] = found;
    }
    found = k ? k->in[s->member - 1] : NULL;
    pthread_mutex_unlock(&libraries_lock);
    return found;
}

/* ---- libraries ---- */

static CUresult library_add(const struct library *l, CUlibrary *library)
{
    pthread_mutex_lock(&libraries_lock);
    struct library *more = realloc(libraries, (library_count + 1) * sizeof *more);
    if (more) {
        libraries = more;
        libraries[library_count] = *l;
        *library = (CUlibrary)(uintptr_t)span_id(CB_KIND_LIBRARY, library_count++);
    }
    pthread_mutex_unlock(&libraries_lock);
    return more ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult library_unload(const struct library *l)
{
    CUresult result = CUDA_SUCCESS;
    for (unsigned int i = 0; i < span_count; i++) {
        CUresult one = l->in[i] ? SPAN_CALL(&span_sessions[i], cuLibraryUnload)(l->in[i]) : CUDA_SUCCESS;
        if (one != CUDA_ERROR_DEVICE_UNAVAILABLE && result == CUDA_SUCCESS) result = one;
    }
    return result;
}

/* A lost server does not prevent the use of the others. */
static CUresult library_loaded(const struct library *l, const CUresult *results, CUlibrary *library)
{
    CUresult failed = CUDA_SUCCESS;
    bool any = false;
    for (unsigned int i = 0; i < span_count; i++) {
        any = any || results[i] == CUDA_SUCCESS;
        if (results[i] != CUDA_SUCCESS && results[i] != CUDA_ERROR_DEVICE_UNAVAILABLE) failed = results[i];
    }
    CUresult result = failed != CUDA_SUCCESS ? failed : any ? library_add(l, library) : results[0];
    if (result != CUDA_SUCCESS) library_unload(l);
    return result;
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                                  void **jitOptionsValues, unsigned int numJitOptions,
                                  CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                  unsigned int numLibraryOptions)
{
    struct library l = {.alive = true};
    CUresult results[CB_SPAN_MAX];
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!library) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < span_count; i++)
        results[i] = SPAN_CALL(&span_sessions[i],
                               cuLibraryLoadData)(&l.in[i], code, jitOptions, jitOptionsValues, numJitOptions,
                                                  libraryOptions, libraryOptionValues, numLibraryOptions);
    return library_loaded(&l, results, library);
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                                      void **jitOptionsValues, unsigned int numJitOptions,
                                      CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                      unsigned int numLibraryOptions)
{
    struct library l = {.alive = true};
    CUresult results[CB_SPAN_MAX];
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!library) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < span_count; i++)
        results[i] = SPAN_CALL(&span_sessions[i], cuLibraryLoadFromFile)(
            &l.in[i], fileName, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
            libraryOptionValues, numLibraryOptions);
    return library_loaded(&l, results, library);
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&libraries_lock);
    struct library *l = library_find((uintptr_t)library), gone = {.alive = false};
    if (l) gone = *l;
    if (l) l->alive = false;
    pthread_mutex_unlock(&libraries_lock);
    return gone.alive ? library_unload(&gone) : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- kernels ---- */

/* Look up a name of the library, as a handle of the program. */
static CUresult kernel_by_name(CUlibrary library, const char *name, CUkernel *kernel)
{
    size_t i = 0;
    pthread_mutex_lock(&libraries_lock);
    const struct library *l = library_find((uintptr_t)library);
    size_t number = l ? (size_t)(l - libraries) : 0;
    while (i < kernel_count && (kernels[i].library != number || strcmp(kernels[i].name, name) != 0))
        i++;
    if (l && i == kernel_count) {
        struct kernel *more = realloc(kernels, (kernel_count + 1) * sizeof *more);
        char *kept = strdup(name);
        if (more) kernels = more;
        if (more && kept)
            kernels[kernel_count++] = (struct kernel){.library = number, .name = kept};
        else
            free(kept);
    }
    bool ok = l && i < kernel_count;
    pthread_mutex_unlock(&libraries_lock);
    if (!l) return CUDA_ERROR_INVALID_HANDLE;
    *kernel = (CUkernel)(uintptr_t)span_id(CB_KIND_KERNEL, i);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    CUkernel found;
    struct span_session *s = span_current();
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!pKernel) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(SPAN_CALL(s, cuLibraryGetKernel)(&found, span_library(s, library), name));
    return kernel_by_name(library, name, pKernel);
}

EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *list, unsigned int numKernels, CUlibrary lib)
{
    struct span_session *s = span_current();
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    CB_OK(SPAN_CALL(s, cuLibraryEnumerateKernels)(list, numKernels, span_library(s, lib)));
    for (unsigned int i = 0; i < numKernels && list[i]; i++) {
        const char *name = NULL;
        CB_OK(SPAN_CALL(s, cuKernelGetName)(&name, list[i]));
        CB_OK(kernel_by_name(lib, name, &list[i]));
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel)
{
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&libraries_lock);
    const struct kernel *k = kernel_find((uintptr_t)kernel);
    uint64_t id = k ? span_id(CB_KIND_LIBRARY, k->library) : 0;
    pthread_mutex_unlock(&libraries_lock);
    if (!id) return CUDA_ERROR_INVALID_HANDLE;
    if (!pLib) return CUDA_ERROR_INVALID_VALUE;
    *pLib = (CUlibrary)(uintptr_t)id;
    return CUDA_SUCCESS;
}
