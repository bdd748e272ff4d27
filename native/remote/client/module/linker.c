/*
 * Hooks of the driver's linker: inputs are sent by their hash, as images are; logs come back with every step.
 */
#include "remote/client/api/object_table.h"
#include "remote/client/module/code_image.h"

#include <sys/mman.h>

struct linker { /* options, and the buffers of the logs, are used as long as it exists */
    struct cb_jit jit;
    CUjit_option option[CB_JIT_MAX];
    void *result;
};

static CUresult answer_state(struct cb_call *call, enum cb_code_state *state)
{
    *state = (enum cb_code_state)cb_take_word(call);
    CUresult result = (CUresult)cb_take_word(call);
    return *state == CB_CODE_FAILED ? result : CUDA_SUCCESS;
}

/* Ask for a step; the answer has its outcome and the logs. */
static CUresult linker_step(struct cb_call *call, const struct linker *l, enum cb_code_state *state)
{
    CB_OK(cb_call_ask(call));
    CUresult result = answer_state(call, state);
    cb_jit_take(call, &l->jit);
    return result;
}

static CUresult linker_get(CUlinkState state, struct linker **out)
{
    void **data = cb_object_data((uintptr_t)state, CB_KIND_LINKER);
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    *out = data ? *data : NULL;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option *options, void **optionValues,
                                CUlinkState *stateOut)
{
    struct cb_call call;
    enum cb_code_state state;
    struct cb_jit jit = {numOptions, options, optionValues};
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!stateOut) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_jit_check(&jit));
    struct linker *l = calloc(1, sizeof *l);
    if (!l) return CUDA_ERROR_OUT_OF_MEMORY;
    if (numOptions) memcpy(l->option, options, numOptions * sizeof options[0]);
    l->jit = (struct cb_jit){numOptions, l->option, optionValues};
    CUresult result = cb_call_begin(&call, CB_OP_LINKER_CREATE, CB_IN_CONTEXT);
    uint64_t id = 0;
    if (result == CUDA_SUCCESS) {
        id = cb_new_object(&call, CB_KIND_LINKER);
        cb_put_word(&call, id);
        cb_jit_put(&call, &jit);
        result = linker_step(&call, l, &state);
        cb_call_end(&call);
    }
    if (result != CUDA_SUCCESS) {
        if (id) cb_drop_object(id);
        free(l);
        return result;
    }
    *cb_object_data(id, CB_KIND_LINKER) = l;
    *stateOut = (CUlinkState)(uintptr_t)id;
    return CUDA_SUCCESS;
}

struct input {
    CUlinkState state;
    CUjitInputType type;
    const void *data;
    size_t bytes;
    const char *name;
    struct cb_jit jit;
    uint8_t hash[CB_HASH_BYTES];
};

static CUresult input_ask(const struct input *i, const struct linker *l, enum cb_code_state *state)
{
    struct cb_call call;
    CB_OK(cb_call_begin(&call, CB_OP_LINKER_ADD, CB_IN_CONTEXT));
    cb_put_handle(&call, CB_KIND_LINKER, (uintptr_t)i->state);
    cb_put_word(&call, (uint64_t)i->type);
    cb_put_word(&call, i->bytes);
    cb_put_bytes(&call, i->hash, sizeof i->hash);
    cb_put_string(&call, i->name ? i->name : "");
    cb_jit_put(&call, &i->jit);
    CUresult result = linker_step(&call, l, state);
    if (*state != CB_CODE_UNKNOWN) cb_jit_take(&call, &i->jit);
    cb_call_end(&call);
    return result;
}

static CUresult input_add(struct input *i)
{
    struct linker *l;
    enum cb_code_state state = CB_CODE_FAILED;
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    CB_OK(linker_get(i->state, &l));
    if (!i->data || !i->bytes) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_jit_check(&i->jit));
    cb_hash(i->data, i->bytes, i->hash);
    pthread_mutex_lock(&one_at_a_time);
    CUresult result = input_ask(i, l, &state);
    if (result == CUDA_SUCCESS && state == CB_CODE_UNKNOWN) {
        result = cb_image_send(i->data, i->bytes);
        if (result == CUDA_SUCCESS) result = input_ask(i, l, &state);
    }
    pthread_mutex_unlock(&one_at_a_time);
    return result;
}

EXPORT CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size,
                                 const char *name, unsigned int numOptions, CUjit_option *options,
                                 void **optionValues)
{
    struct input i = {state, type, data, size, name, {numOptions, options, optionValues}, {0}};
    return input_add(&i);
}

EXPORT CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path,
                                 unsigned int numOptions, CUjit_option *options, void **optionValues)
{
    void *data;
    size_t bytes;
    struct linker *l;
    CB_OK(linker_get(state, &l));
    if (!path) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_image_map(path, &data, &bytes));
    /* the size of text includes its terminating zero */
    size_t given = type == CU_JIT_INPUT_PTX ? bytes + 1 : bytes;
    struct input i = {state, type, data, given, path, {numOptions, options, optionValues}, {0}};
    CUresult result = input_add(&i);
    munmap(data, bytes + 1);
    return result;
}

EXPORT CUresult cuLinkComplete(CUlinkState state, void **cubinOut, size_t *sizeOut)
{
    struct cb_call call;
    struct linker *l;
    enum cb_code_state how;
    CB_OK(linker_get(state, &l));
    if (!cubinOut) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_call_begin(&call, CB_OP_LINKER_COMPLETE, CB_IN_CONTEXT));
    cb_put_handle(&call, CB_KIND_LINKER, (uintptr_t)state);
    CUresult result = linker_step(&call, l, &how);
    size_t bytes = cb_take_word(&call);
    cb_call_end(&call);
    if (result != CUDA_SUCCESS) return result;
    void *cubin = malloc(CB_WORDS(bytes) + 8);
    if (!cubin) return CUDA_ERROR_OUT_OF_MEMORY;
    result = cb_call_begin(&call, CB_OP_LINKER_FETCH, CB_IN_CONTEXT);
    if (result == CUDA_SUCCESS) {
        cb_put_handle(&call, CB_KIND_LINKER, (uintptr_t)state);
        result = cb_call_exchange(&call, NULL, 0, cubin, CB_WORDS(bytes));
    }
    if (result != CUDA_SUCCESS) {
        free(cubin);
        return result;
    }
    free(l->result);
    l->result = cubin;
    *cubinOut = cubin;
    if (sizeOut) *sizeOut = bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkDestroy(CUlinkState state)
{
    struct cb_call call;
    struct linker *l;
    CB_OK(linker_get(state, &l));
    CB_OK(cb_call_begin(&call, CB_OP_LINKER_DESTROY, CB_ANYWHERE));
    cb_put_handle(&call, CB_KIND_LINKER, (uintptr_t)state);
    CUresult result = cb_call_ask(&call);
    cb_drop_object((uintptr_t)state);
    free(l->result);
    free(l);
    return result;
}
