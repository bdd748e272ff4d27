/*
 * Loading of code images. An image is named by its hash, and only sent if the worker does not have it; the
 * answer describes all of its contents, so that nothing about a kernel is asked again. Large answers come in
 * several parts.
 */
#include "remote/client/module/code_image.h"

#include "image/bytes.h"
#include "remote/client/api/object_table.h"
#include "remote/client/connection/command_buffer.h"
#include "remote/client/context/context_stack.h"
#include "remote/client/memory/memory_ranges.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct placed {
    char *name;
    uint16_t context;
    struct cb_variable variable;
    struct placed *next;
};

struct image {
    struct cb_function **function; /* by name */
    size_t count;
    struct placed *placed;
};

static pthread_mutex_t variables_lock = PTHREAD_MUTEX_INITIALIZER; /* of the variables */

static struct image *image_of(enum cb_kind kind, uint64_t id)
{
    void **data = cb_object_data(id, kind);
    return data ? *data : NULL;
}

static CUresult image_get(enum cb_kind kind, uint64_t id, struct image **out)
{
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    *out = image_of(kind, id);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- sending ---- */

CUresult cb_image_send(const void *image, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += CB_BULK_MAX) {
        struct cb_call call;
        size_t part = bytes - at < CB_BULK_MAX ? bytes - at : CB_BULK_MAX;
        CB_OK(cb_call_begin(&call, CB_OP_IMAGE, CB_ANYWHERE));
        cb_put_word(&call, at);
        cb_put_word(&call, bytes);
        cb_put_word(&call, part);
        CB_OK(cb_call_send_with(&call, (const char *)image + at, part));
    }
    __atomic_fetch_add(&cb_counters.image_bytes, bytes, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

CUresult cb_image_map(const char *name, void **out, size_t *bytes)
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

/* ---- contents ---- */

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(struct cb_function *const *)a)->name, (*(struct cb_function *const *)b)->name);
}

/* Take functions until the answer has no more; `*all` receives the number of functions in the image. */
static bool functions_take(struct cb_call *c, uint64_t id, struct image *i, size_t *all)
{
    *all = cb_take_word(c);
    if (*all > 1u << 20) return false;
    if (!i->function) i->function = calloc(*all + 1, sizeof *i->function);
    if (!i->function) return false;
    while (cb_take_word(c)) {
        struct cb_function *f = i->count < *all ? cb_function_take(c, id) : NULL;
        if (!f) return false;
        i->function[i->count++] = f;
    }
    return true;
}

static void image_free(struct image *i)
{
    for (size_t k = 0; k < i->count; k++)
        cb_function_drop(i->function[k]);
    while (i->placed) {
        struct placed *p = i->placed;
        i->placed = p->next;
        cb_range_drop(p->variable.address, NULL);
        free(p->name);
        free(p);
    }
    free(i->function);
    free(i);
}

static CUresult functions_ask_rest(uint64_t id, struct image *i, size_t all)
{
    while (i->count < all) {
        struct cb_call call;
        size_t before = i->count, again;
        CB_OK(cb_call_begin(&call, CB_OP_IMAGE_MORE, CB_ANYWHERE));
        cb_put_word(&call, id);
        cb_put_word(&call, before);
        CB_OK(cb_call_ask(&call));
        bool ok = functions_take(&call, id, i, &again) && again == all && i->count > before;
        cb_call_end(&call);
        if (!ok) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

CUresult cb_image_adopt(struct cb_call *c, uint64_t id, enum cb_kind kind)
{
    size_t all = 0;
    if (image_of(kind, id)) { /* asked for before */
        cb_call_end(c);
        return CUDA_SUCCESS;
    }
    struct image *i = calloc(1, sizeof *i);
    bool ok = i && functions_take(c, id, i, &all);
    cb_call_end(c);
    CUresult result = ok ? functions_ask_rest(id, i, all) : CUDA_ERROR_OUT_OF_MEMORY;
    void **data = cb_object_data(id, kind);
    if (result == CUDA_SUCCESS && !data && !cb_object_learn(id, i)) result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        if (i) image_free(i);
        return result;
    }
    qsort(i->function, i->count, sizeof *i->function, compare_names);
    if (data) *data = i;
    return CUDA_SUCCESS;
}

/* ---- loading ---- */

struct load {
    enum cb_kind kind;
    const void *image;
    size_t bytes;
    uint8_t hash[CB_HASH_BYTES];
    const struct cb_jit *jit;
    uint64_t id;
};

static CUresult load_ask(struct load *l, struct cb_call *call, enum cb_code_state *state)
{
    CB_OK(cb_call_begin(call, CB_OP_IMAGE_LOAD, CB_ANYWHERE));
    if (!l->id) l->id = cb_new_object(call, l->kind);
    cb_put_word(call, l->id);
    cb_put_word(call, l->bytes);
    cb_put_bytes(call, l->hash, sizeof l->hash);
    cb_jit_put(call, l->jit);
    CB_OK(cb_call_ask(call));
    *state = (enum cb_code_state)cb_take_word(call);
    CUresult result = (CUresult)cb_take_word(call);
    if (*state == CB_CODE_UNKNOWN) return CUDA_SUCCESS;
    cb_jit_take(call, l->jit);
    if (*state == CB_CODE_DONE) return CUDA_SUCCESS;
    cb_call_end(call);
    return result;
}

CUresult cb_image_load(enum cb_kind kind, const void *image, size_t limit, const struct cb_jit *jit,
                       uint64_t *out)
{
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    struct cb_call call;
    enum cb_code_state state = CB_CODE_FAILED;
    struct load l = {.kind = kind, .bytes = image_bytes(&image, limit), .jit = jit};
    l.image = image;
    if (!l.bytes) return CUDA_ERROR_INVALID_IMAGE;
    cb_hash(l.image, l.bytes, l.hash);
    pthread_mutex_lock(&one_at_a_time);
    CUresult result = load_ask(&l, &call, &state);
    if (result == CUDA_SUCCESS && state == CB_CODE_UNKNOWN) {
        cb_call_end(&call);
        result = cb_image_send(l.image, l.bytes);
        if (result == CUDA_SUCCESS) result = load_ask(&l, &call, &state);
        if (result == CUDA_SUCCESS && state == CB_CODE_UNKNOWN) result = CUDA_ERROR_UNKNOWN;
    }
    pthread_mutex_unlock(&one_at_a_time);
    if (result == CUDA_SUCCESS) result = cb_image_adopt(&call, l.id, kind);
    if (result == CUDA_SUCCESS)
        *out = l.id;
    else if (l.id)
        cb_drop_object(l.id);
    return result;
}

CUresult cb_image_unload(enum cb_kind kind, uint64_t id)
{
    struct cb_call call;
    struct image *i;
    CB_OK(image_get(kind, id, &i));
    CB_OK(cb_call_begin(&call, CB_OP_IMAGE_UNLOAD, CB_ANYWHERE));
    cb_put_word(&call, id);
    CB_OK(cb_call_send(&call));
    cb_drop_object(id);
    image_free(i);
    return CUDA_SUCCESS;
}

/* ---- look-ups ---- */

CUresult cb_image_find(enum cb_kind kind, uint64_t id, const char *name, struct cb_function **out)
{
    struct image *i;
    CB_OK(image_get(kind, id, &i));
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    struct cb_function wanted = {.name = (char *)name}, *key = &wanted;
    struct cb_function **found = bsearch(&key, i->function, i->count, sizeof *i->function, compare_names);
    if (!found) return CUDA_ERROR_NOT_FOUND;
    *out = *found;
    return CUDA_SUCCESS;
}

CUresult cb_image_count(enum cb_kind kind, uint64_t id, unsigned int *out)
{
    struct image *i;
    CB_OK(image_get(kind, id, &i));
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = (unsigned int)i->count;
    return CUDA_SUCCESS;
}

CUresult cb_image_list(enum cb_kind kind, uint64_t id, void **out, unsigned int capacity)
{
    struct image *i;
    CB_OK(image_get(kind, id, &i));
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    for (size_t k = 0; k < i->count && k < capacity; k++)
        out[k] = (void *)(uintptr_t)i->function[k]->id;
    return CUDA_SUCCESS;
}

bool cb_image_variable(enum cb_kind kind, uint64_t id, const char *name, struct cb_variable *out)
{
    const struct image *i = image_of(kind, id);
    uint16_t context = kind == CB_KIND_LIBRARY ? cb_context_number() : 0;
    bool found = false;
    if (!i || !name) return false;
    pthread_mutex_lock(&variables_lock);
    for (const struct placed *p = i->placed; p && !found; p = p->next) {
        if (p->context != context || strcmp(p->name, name)) continue;
        *out = p->variable;
        found = true;
    }
    pthread_mutex_unlock(&variables_lock);
    return found;
}

void cb_image_keep_variable(enum cb_kind kind, uint64_t id, const char *name, const struct cb_variable *v)
{
    struct image *i = image_of(kind, id);
    struct placed *p = i ? calloc(1, sizeof *p) : NULL;
    if (!p || !(p->name = strdup(name))) {
        free(p);
        return;
    }
    p->context = kind == CB_KIND_LIBRARY ? cb_context_number() : 0;
    p->variable = *v;
    cb_range_add(v->address, v->bytes, CB_MEMORY_DEVICE, 0);
    pthread_mutex_lock(&variables_lock);
    p->next = i->placed;
    i->placed = p;
    pthread_mutex_unlock(&variables_lock);
}
