#include "remote/client/context/context_stack.h"

#include "remote/client/api/object_table.h"

#define THREADS_MAX 65535

__thread int cb_per_thread;
__thread struct cb_stack cb_stack;
static __thread uint16_t thread_number;
static struct cb_context *contexts[CB_CONTEXTS_MAX + 1]; /* by the number in frames */

uint16_t cb_thread_number(void)
{
    static uint32_t threads;
    if (!thread_number)
        thread_number = (uint16_t)(1 + __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED) % THREADS_MAX);
    return thread_number;
}

struct cb_context *cb_context_of(uint64_t id)
{
    void **data = cb_object_data(id, CB_KIND_CONTEXT);
    return data ? *data : NULL;
}

struct cb_context *cb_context_current(void)
{
    return cb_stack.depth ? cb_context_of(cb_stack.id[cb_stack.depth - 1]) : NULL;
}

uint16_t cb_context_number(void)
{
    const struct cb_context *c = cb_context_current();
    return c && c->active ? (uint16_t)(cb_object_number(c->id) + 1) : 0;
}

bool cb_context_add(struct cb_context *c)
{
    c->id = cb_object_new(CB_KIND_CONTEXT);
    if (c->id && cb_object_number(c->id) < CB_CONTEXTS_MAX) {
        *cb_object_data(c->id, CB_KIND_CONTEXT) = c;
        contexts[cb_object_number(c->id) + 1] = c;
        return true;
    }
    cb_drop_object(c->id);
    c->id = 0;
    return false;
}

void cb_context_drop(struct cb_context *c)
{
    contexts[cb_object_number(c->id) + 1] = NULL;
    cb_drop_object(c->id);
}

void cb_context_failed(uint16_t number, CUresult result)
{
    struct cb_context *c = number <= CB_CONTEXTS_MAX ? contexts[number] : NULL;
    CUresult none = CUDA_SUCCESS;
    if (c) __atomic_compare_exchange_n(&c->failed, &none, result, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

CUresult cb_context_take_failure(void)
{
    struct cb_context *c = cb_context_current();
    if (!c || __atomic_load_n(&c->failed, __ATOMIC_RELAXED) == CUDA_SUCCESS) return CUDA_SUCCESS;
    return __atomic_exchange_n(&c->failed, CUDA_SUCCESS, __ATOMIC_RELAXED);
}
