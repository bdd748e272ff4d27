#include "remote/span/route.h"

#include "remote/wire/arena.h"

__thread struct span_stack span_stack;
__thread int span_per_thread;
bool span_ready;
static CUcontext last_context[CB_SPAN_MAX]; /* last current context of each session, in any thread */

void *span_function(const struct span_session *s, int function)
{
    return s->port->address[span_per_thread ? span_per_thread_variant[function] : function];
}

static struct span_session *session_by_number(uint64_t member)
{
    return member && member <= span_count ? &span_sessions[member - 1] : NULL;
}

struct span_session *span_of_handle(uint64_t id)
{
    return id >> 48 == CB_OBJECT_TAG ? session_by_number(id >> 32 & 0xff) : NULL;
}

struct span_session *span_of_address(uint64_t address)
{
    uint64_t at = address - CB_SPAN_ADDRESSES;
    if (at < CB_SPAN_MAX * CB_SPAN_BYTES) return session_by_number(at / CB_SPAN_BYTES + 1);
    for (unsigned int i = 0; i < span_count; i++) {
        if (span_sessions[i].port->owns(address)) return &span_sessions[i];
    }
    return NULL;
}

struct span_session *span_current(void)
{
    struct span_session *s = span_stack.depth ? span_of_handle(span_stack.id[span_stack.depth - 1]) : NULL;
    return s ? s : &span_sessions[0];
}

void span_remember(const struct span_session *s, CUcontext context)
{
    __atomic_store_n(&last_context[s->member - 1], context, __ATOMIC_RELAXED);
}

/* The context that memory belongs to; if unknown, one that may serve. */
static CUcontext context_for(const struct span_session *s, uint64_t address)
{
    CUcontext found = NULL;
    if (address && SPAN_CALL(s, cuPointerGetAttribute)(&found, CU_POINTER_ATTRIBUTE_CONTEXT, address))
        found = NULL;
    return found ? found : __atomic_load_n(&last_context[s->member - 1], __ATOMIC_RELAXED);
}

CUresult span_enter(struct span_visit *v, struct span_session *s, uint64_t address)
{
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    struct span_session *current = span_current();
    *v = (struct span_visit){.session = s ? s : current};
    if (v->session == current) return CUDA_SUCCESS;
    CUcontext context = context_for(s, address);
    v->pushed = context && SPAN_CALL(s, cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;
    return CUDA_SUCCESS;
}

void span_leave(const struct span_visit *v)
{
    if (v->pushed) SPAN_CALL(v->session, cuCtxPopCurrent_v2)(NULL);
}
