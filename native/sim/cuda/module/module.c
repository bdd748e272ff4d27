/*
 * Modules and libraries: code images with their kernels and global variables.
 *
 * A library is a module without a context: its global variables are placed in a context when that context first
 * uses them.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/cuda/module/module.h"

#include "image/image.h"
#include "image/parse.h"
#include "sim/cuda/memory/address_space.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"

#include <stdio.h>
#include <sys/stat.h>

struct placed_global {
    const struct global_variable *variable;
    struct context *context;
    struct range *range;
    struct placed_global *next;
};

static struct module *modules;
/*
 * Recursive: also taken by a thread that has locked the modules. It is taken before the locks of code and of
 * memory.
 */
static pthread_mutex_t modules_mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

int modules_lock(void)
{
    return pthread_mutex_lock(&modules_mutex);
}

void modules_unlock(const int *held)
{
    (void)held;
    pthread_mutex_unlock(&modules_mutex);
}

static uint32_t device_sm(const struct device *d)
{
    return d->shared->profile.compute_major * 10 + d->shared->profile.compute_minor;
}

/* Store the compiler's figures of the kernels. */
static void entries_set_figures(struct image *i, const struct code *code)
{
    for (size_t k = 0; k < i->entry_count; k++) {
        struct entry_point *e = &i->entry[k];
        const struct routine *r = code_entry(code, e->name);
        if (!r) continue;
        if (!e->shared_bytes) e->shared_bytes = r->shared_bytes + code_shared(code);
        if (!e->const_bytes) e->const_bytes = code_constants(code);
        if (!e->local_bytes) e->local_bytes = r->local_bytes;
        if (e->registers <= 16) e->registers = code_registers(code, r);
    }
}

CUresult module_load(const void *data, size_t limit, struct context *c, enum kind kind, struct module **out)
{
    const struct device *d = c ? c->device : &process.device[0];
    struct image *image;
    struct code *code = NULL;
    CUresult result = image_parse(data, limit, device_sm(d), &image);
    if (result != CUDA_SUCCESS) return result;
    result = code_compile(image, &code);
    if (result != CUDA_SUCCESS) {
        image_free(image);
        return result;
    }
    entries_set_figures(image, code);
    struct module *m = object_new(kind, sizeof *m);
    struct function **table = calloc(image->entry_count + 1, sizeof(struct function *));
    if (!m || !table) {
        if (m) object_free(m);
        free(table);
        code_free(code);
        image_free(image);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    m->image = image;
    m->code = code;
    m->function = table;
    m->context = context_home(c);
    pthread_mutex_lock(&modules_mutex);
    m->next = modules;
    modules = m;
    pthread_mutex_unlock(&modules_mutex);
    *out = m;
    return CUDA_SUCCESS;
}

/* The caller holds the lock or is alone with `m`. */
static void globals_drop(struct module *m, const struct context *c)
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

void module_limit_registers(struct module *m, uint32_t most)
{
    for (size_t i = 0; i < m->image->entry_count; i++) {
        if (m->image->entry[i].registers > most) m->image->entry[i].registers = most < 16 ? 16 : most;
    }
}

/* Requires the lock; return false if another thread has unloaded it. */
static bool module_unlink(const struct module *m)
{
    for (struct module **p = &modules; *p; p = &(*p)->next) {
        if (*p != m) continue;
        *p = m->next;
        return true;
    }
    return false;
}

/* Requires the lock. */
static void module_free(struct module *m)
{
    if (!module_unlink(m)) return;
    globals_drop(m, NULL);
    code_free(m->code);
    for (size_t i = 0; i < m->image->entry_count; i++) {
        if (m->function[i]) object_free(m->function[i]);
    }
    free(m->function);
    image_free(m->image);
    object_free(m);
}

void module_unload(struct module *m)
{
    pthread_mutex_lock(&modules_mutex);
    module_free(m);
    pthread_mutex_unlock(&modules_mutex);
}

void module_drop_context(struct context *c)
{
    pthread_mutex_lock(&modules_mutex);
    for (struct module *m = modules, *next; m; m = next) {
        next = m->next;
        if (m->context == c) {
            module_free(m);
        } else if (!m->context) {
            globals_drop(m, c);
            code_drop(m->code, c);
        }
    }
    pthread_mutex_unlock(&modules_mutex);
}

/*
 * Choose how a function is executed: its PTX, unless that is only a stub for a registered kernel, or the module
 * asks for kernels by name.
 */
static void function_choose_implementation(struct function *f)
{
    const struct routine *r = code_entry(f->module->code, f->entry->name);
    if (!r || r->refused) return;
    if (f->kernel && (r->empty || code_by_name(f->module->code))) return;
    f->routine = r;
    f->kernel = NULL;
}

static CUresult function_get_or_make(struct module *m, size_t i, struct function **out)
{
    pthread_mutex_lock(&modules_mutex);
    struct function *f = m->function[i];
    if (!f && (f = object_new(KIND_FUNCTION, sizeof *f))) {
        f->module = m;
        f->entry = &m->image->entry[i];
        f->kernel = kernel_find(f->entry->name);
        struct parameter p[PARAMETERS_MAX];
        uint32_t bytes, count = f->kernel ? kernel_parameters(f->kernel, p, &bytes) : 0;
        /* A registered name with other parameters is a different kernel. */
        if (f->kernel && f->entry->has_parameters && f->entry->parameter_count != count) f->kernel = NULL;
        for (uint32_t k = 0; f->kernel && f->entry->has_parameters && k < count; k++) {
            if (f->entry->parameter[k].size != p[k].size) f->kernel = NULL;
        }
        function_choose_implementation(f);
        m->function[i] = f;
    }
    pthread_mutex_unlock(&modules_mutex);
    *out = f;
    return f ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult module_function(struct module *m, const char *name, struct function **out)
{
    for (size_t i = 0; i < m->image->entry_count; i++) {
        if (strcmp(m->image->entry[i].name, name) == 0) return function_get_or_make(m, i, out);
    }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult module_global(struct module *m, struct context *c, const char *name, CUdeviceptr *address,
                       size_t *bytes)
{
    c = context_home(c);
    if (m->code) return code_global(m->code, c, m, name, address, bytes);
    for (size_t i = 0; i < m->image->global_count; i++) {
        const struct global_variable *v = &m->image->global[i];
        if (strcmp(v->name, name) != 0) continue;
        pthread_mutex_lock(&modules_mutex);
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
        pthread_mutex_unlock(&modules_mutex);
        if (g && address) *address = g->range->base;
        if (g && bytes) *bytes = v->size;
        return result;
    }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult module_functions(struct module *m, void **out, unsigned int capacity)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < m->image->entry_count && i < capacity && result == CUDA_SUCCESS; i++) {
        struct function *f;
        result = function_get_or_make(m, i, &f);
        out[i] = f;
    }
    return result;
}

CUresult module_read_file(const char *name, void **out, size_t *bytes)
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

const struct image *function_image(const struct function *f)
{
    return f->module->image;
}
