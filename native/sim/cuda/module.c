/*
 * Modules and libraries: code images with their kernels and global variables.
 *
 * A library is a module of no context: its global variables are placed in a context when that context first
 * asks.
 */
#include "sim/cuda/internal.h"

#include <stdio.h>
#include <sys/stat.h>

struct placed_global {
    const struct global_variable *variable;
    struct context *context;
    struct range *range;
    struct placed_global *next;
};

struct module {
    struct object object;    /* KIND_MODULE or KIND_LIBRARY */
    struct context *context; /* NULL: a library */
    struct image *image;
    struct function **function; /* one per entry, made on demand */
    struct placed_global *globals;
    struct module *next;
};

static struct module *modules;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint32_t sm_of(const struct device *d)
{
    return d->shared->profile.compute_major * 10 + d->shared->profile.compute_minor;
}

static CUresult load(const void *data, size_t limit, struct context *c, enum kind kind, struct module **out)
{
    const struct device *d = c ? c->device : &process.device[0];
    struct image *image;
    CUresult result = image_parse(data, limit, sm_of(d), &image);
    if (result != CUDA_SUCCESS) return result;
    struct module *m = object_new(kind, sizeof *m);
    struct function **table = calloc(image->entry_count + 1, sizeof(struct function *));
    if (!m || !table) {
        if (m) object_free(m);
        free(table);
        image_free(image);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    m->image = image;
    m->function = table;
    m->context = c;
    pthread_mutex_lock(&lock);
    m->next = modules;
    modules = m;
    pthread_mutex_unlock(&lock);
    *out = m;
    return CUDA_SUCCESS;
}

/* The caller holds the lock or is alone with `m`. */
static void drop_globals(struct module *m, const struct context *c)
{
    for (struct placed_global **p = &m->globals; *p;) {
        struct placed_global *g = *p;
        if (c && g->context != c) {
            p = &g->next;
            continue;
        }
        *p = g->next;
        memory_drop(g->range);
        free(g);
    }
}

static void unload(struct module *m)
{
    pthread_mutex_lock(&lock);
    for (struct module **p = &modules; *p; p = &(*p)->next) {
        if (*p != m) continue;
        *p = m->next;
        break;
    }
    pthread_mutex_unlock(&lock);
    drop_globals(m, NULL);
    for (size_t i = 0; i < m->image->entry_count; i++) {
        if (m->function[i]) object_free(m->function[i]);
    }
    free(m->function);
    image_free(m->image);
    object_free(m);
}

void module_drop_context(struct context *c)
{
    for (;;) {
        struct module *found = NULL;
        pthread_mutex_lock(&lock);
        for (struct module *m = modules; m && !found; m = m->next) {
            if (m->context == c) found = m;
        }
        for (struct module *m = modules; m && !found; m = m->next) {
            if (!m->context) drop_globals(m, c);
        }
        pthread_mutex_unlock(&lock);
        if (!found) return;
        unload(found);
    }
}

static CUresult function_at(struct module *m, size_t i, struct function **out)
{
    pthread_mutex_lock(&lock);
    struct function *f = m->function[i];
    if (!f && (f = object_new(KIND_FUNCTION, sizeof *f))) {
        f->module = m;
        f->entry = &m->image->entry[i];
        f->kernel = kernel_find(f->entry->name);
        struct parameter p[PARAMETERS_MAX];
        uint32_t bytes, count = f->kernel ? kernel_parameters(f->kernel, p, &bytes) : 0;
        /* A kernel of ours by name, but with other parameters, is somebody else's. */
        if (f->kernel && f->entry->has_parameters && f->entry->parameter_count != count) f->kernel = NULL;
        for (uint32_t k = 0; f->kernel && f->entry->has_parameters && k < count; k++) {
            if (f->entry->parameter[k].size != p[k].size) f->kernel = NULL;
        }
        m->function[i] = f;
    }
    pthread_mutex_unlock(&lock);
    *out = f;
    return f ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult function_named(struct module *m, const char *name, struct function **out)
{
    for (size_t i = 0; i < m->image->entry_count; i++) {
        if (strcmp(m->image->entry[i].name, name) == 0) return function_at(m, i, out);
    }
    return CUDA_ERROR_NOT_FOUND;
}

static CUresult global_named(struct module *m, struct context *c, const char *name, CUdeviceptr *address,
                             size_t *bytes)
{
    for (size_t i = 0; i < m->image->global_count; i++) {
        const struct global_variable *v = &m->image->global[i];
        if (strcmp(v->name, name) != 0) continue;
        pthread_mutex_lock(&lock);
        struct placed_global *g = m->globals;
        while (g && (g->variable != v || g->context != c))
            g = g->next;
        CUresult result = CUDA_SUCCESS;
        if (!g) {
            g = calloc(1, sizeof *g);
            result = g ? memory_take(c, c->device, v->size ? v->size : 1, MEMORY_DEVICE, &g->range)
                       : CUDA_ERROR_OUT_OF_MEMORY;
            if (result == CUDA_SUCCESS) {
                g->variable = v;
                g->context = c;
                g->range->owner = m;
                memset((void *)g->range->base, 0, v->size);
                g->next = m->globals;
                m->globals = g;
            } else {
                free(g);
                g = NULL;
            }
        }
        pthread_mutex_unlock(&lock);
        if (g && address) *address = g->range->base;
        if (g && bytes) *bytes = v->size;
        return result;
    }
    return CUDA_ERROR_NOT_FOUND;
}

/* ---- modules ---- */

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    struct context *c;
    struct module *m;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
    result = load(image, 0, c, KIND_MODULE, &m);
    if (result == CUDA_SUCCESS) *module = (CUmodule)m;
    return result;
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
                                   CUjit_option *options, void **optionValues)
{
    if (numOptions && (!options || !optionValues)) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < numOptions; i++) { /* there is no compiler, so nothing was logged */
        if ((options[i] == CU_JIT_INFO_LOG_BUFFER || options[i] == CU_JIT_ERROR_LOG_BUFFER) &&
            optionValues[i])
            *(char *)optionValues[i] = 0;
        if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES ||
            options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
            optionValues[i] = NULL;
        if (options[i] == CU_JIT_WALL_TIME) {
            float zero = 0;
            memcpy(&optionValues[i], &zero, sizeof zero);
        }
    }
    return cuModuleLoadData(module, image);
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    return cuModuleLoadData(module, fatCubin);
}

static CUresult read_file(const char *name, void **out, size_t *bytes)
{
    struct stat st;
    FILE *f = name ? fopen(name, "rbe") : NULL;
    if (!f) return CUDA_ERROR_FILE_NOT_FOUND;
    char *data = NULL;
    CUresult result = CUDA_ERROR_INVALID_IMAGE;
    if (fstat(fileno(f), &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 4 && st.st_size < 1l << 31 &&
        (data = malloc((size_t)st.st_size + 1)) &&
        fread(data, 1, (size_t)st.st_size, f) == (size_t)st.st_size) {
        data[st.st_size] = 0;
        *out = data;
        *bytes = (size_t)st.st_size;
        result = CUDA_SUCCESS;
    } else {
        free(data);
    }
    fclose(f);
    return result;
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
    struct context *c;
    struct module *m;
    void *data;
    size_t bytes;
    CUresult result = context_enter(&c);
    if (result != CUDA_SUCCESS) return result;
    if (!module || !fname) return CUDA_ERROR_INVALID_VALUE;
    result = read_file(fname, &data, &bytes);
    if (result != CUDA_SUCCESS) return result;
    result = load(data, bytes, c, KIND_MODULE, &m);
    free(data);
    if (result == CUDA_SUCCESS) *module = (CUmodule)m;
    return result;
}

static CUresult module_get(CUmodule handle, struct module **out)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct module *m = object_get(handle, KIND_MODULE);
    *out = m;
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuModuleUnload(CUmodule hmod)
{
    struct module *m;
    CUresult result = module_get(hmod, &m);
    if (result != CUDA_SUCCESS) return result;
    if (m->context && object_get(m->context, KIND_CONTEXT)) context_synchronize(m->context);
    unload(m);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    struct module *m;
    struct function *f;
    CUresult result = module_get(hmod, &m);
    if (result != CUDA_SUCCESS) return result;
    if (!hfunc || !name) return CUDA_ERROR_INVALID_VALUE;
    result = function_named(m, name, &f);
    if (result == CUDA_SUCCESS) *hfunc = (CUfunction)f;
    return result;
}

EXPORT CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule mod)
{
    struct module *m;
    CUresult result = module_get(mod, &m);
    if (result != CUDA_SUCCESS) return result;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = (unsigned int)m->image->entry_count;
    return CUDA_SUCCESS;
}

static CUresult enumerate(struct module *m, void **out, unsigned int room)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < m->image->entry_count && i < room && result == CUDA_SUCCESS; i++) {
        struct function *f;
        result = function_at(m, i, &f);
        out[i] = f;
    }
    return result;
}

EXPORT CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod)
{
    struct module *m;
    CUresult result = module_get(mod, &m);
    if (result != CUDA_SUCCESS) return result;
    return functions ? enumerate(m, (void **)functions, numFunctions) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name)
{
    struct module *m;
    CUresult result = module_get(hmod, &m);
    if (result != CUDA_SUCCESS) return result;
    if (!name || (!dptr && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    return global_named(m, m->context, name, dptr, bytes);
}

EXPORT CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    if (!mode) return CUDA_ERROR_INVALID_VALUE;
    const char *text = getenv("CUDA_MODULE_LOADING");
    *mode = text && strcmp(text, "EAGER") == 0 ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

/* ---- libraries ---- */

static CUresult library_load(CUlibrary *library, const void *code, size_t limit)
{
    struct module *m;
    CUresult result = load(code, limit, NULL, KIND_LIBRARY, &m);
    if (result == CUDA_SUCCESS) *library = (CUlibrary)m;
    return result;
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                                  void **jitOptionsValues, unsigned int numJitOptions,
                                  CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                  unsigned int numLibraryOptions)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!library || !code || (numJitOptions && (!jitOptions || !jitOptionsValues)) ||
        (numLibraryOptions && !libraryOptions))
        return CUDA_ERROR_INVALID_VALUE;
    (void)libraryOptionValues;
    return library_load(library, code, 0);
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                                      void **jitOptionsValues, unsigned int numJitOptions,
                                      CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                      unsigned int numLibraryOptions)
{
    void *data;
    size_t bytes;
    (void)jitOptions;
    (void)jitOptionsValues;
    (void)numJitOptions;
    (void)libraryOptions;
    (void)libraryOptionValues;
    (void)numLibraryOptions;
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!library || !fileName) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = read_file(fileName, &data, &bytes);
    if (result != CUDA_SUCCESS) return result;
    result = library_load(library, data, bytes);
    free(data);
    return result;
}

static CUresult library_get(CUlibrary handle, struct module **out)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct module *m = object_get(handle, KIND_LIBRARY);
    *out = m;
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    struct module *m;
    CUresult result = library_get(library, &m);
    if (result == CUDA_SUCCESS) unload(m);
    return result;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    struct module *m;
    struct function *f;
    CUresult result = library_get(library, &m);
    if (result != CUDA_SUCCESS) return result;
    if (!pKernel || !name) return CUDA_ERROR_INVALID_VALUE;
    result = function_named(m, name, &f);
    if (result == CUDA_SUCCESS) *pKernel = (CUkernel)f;
    return result;
}

EXPORT CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib)
{
    struct module *m;
    CUresult result = library_get(lib, &m);
    if (result != CUDA_SUCCESS) return result;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = (unsigned int)m->image->entry_count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib)
{
    struct module *m;
    CUresult result = library_get(lib, &m);
    if (result != CUDA_SUCCESS) return result;
    return kernels ? enumerate(m, (void **)kernels, numKernels) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
    struct context *c;
    struct module *m;
    CUresult result = context_enter(&c);
    if (result == CUDA_SUCCESS) result = library_get(library, &m);
    if (result != CUDA_SUCCESS) return result;
    (void)pMod;
    return unserved("cuLibraryGetModule");
}

static CUresult library_global(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    struct context *c;
    struct module *m;
    CUresult result = context_enter(&c);
    if (result == CUDA_SUCCESS) result = library_get(library, &m);
    if (result != CUDA_SUCCESS) return result;
    if (!name || (!dptr && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    return global_named(m, c, name, dptr, bytes);
}

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    return library_global(dptr, bytes, library, name);
}

EXPORT CUresult cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    return library_global(dptr, bytes, library, name);
}

EXPORT CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel)
{
    const struct function *f = object_get(kernel, KIND_FUNCTION);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!f || f->module->object.kind != KIND_LIBRARY) return CUDA_ERROR_INVALID_HANDLE;
    if (!pLib) return CUDA_ERROR_INVALID_VALUE;
    *pLib = (CUlibrary)f->module;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
    const struct function *f = object_get(hfunc, KIND_FUNCTION);
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!f || f->module->object.kind != KIND_MODULE) return CUDA_ERROR_INVALID_HANDLE;
    if (!hmod) return CUDA_ERROR_INVALID_VALUE;
    *hmod = (CUmodule)f->module;
    return CUDA_SUCCESS;
}

const struct image *function_image(const struct function *f)
{
    return f->module->image;
}
