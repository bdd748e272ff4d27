#include "remote/client/function.h"

#include "remote/client/object.h"

struct cb_function *cb_function_of(uint64_t handle)
{
    void **data = cb_object_data(handle, CB_KIND_FUNCTION);
    if (!data) data = cb_object_data(handle, CB_KIND_KERNEL);
    return data ? *data : NULL;
}

void cb_function_same(uint64_t id, struct cb_function *f)
{
    cb_object_learn(id, f);
}

struct cb_function *cb_function_described(struct cb_call *c)
{
    uint64_t id = cb_take_word(c);
    const char *name = cb_take_string(c);
    uint64_t threads = cb_take_word(c), count = cb_take_word(c);
    if (!name || count > CB_PARAMETERS_MAX) return NULL;
    struct cb_function *f = calloc(1, sizeof *f + count * sizeof f->parameter[0]);
    if (!f || !(f->name = strdup(name))) {
        free(f);
        return NULL;
    }
    f->id = id;
    f->threads_max = (uint32_t)threads;
    f->parameters = (uint32_t)count;
    cb_take_bytes(c, f->parameter, count * sizeof f->parameter[0]);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t end = (uint64_t)f->parameter[i].offset + f->parameter[i].bytes;
        if (end > CB_PARAMETER_BYTES)
            f->parameters = 0;
        else if (end > f->parameter_bytes)
            f->parameter_bytes = (uint32_t)end;
    }
    if (!cb_object_learn(id, f)) return NULL;
    return f;
}
