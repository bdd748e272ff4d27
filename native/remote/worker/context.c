#include "remote/worker/context.h"

#include "remote/worker/generated.h"
#include "remote/worker/pinned.h"
#include "remote/worker/thread_streams.h"
#include "remote/worker/watch.h"

/*
 * Number of the current context in frames; 0: none. A number is reused after its context was destroyed: `life`
 * distinguishes the contexts.
 */
static __thread uint16_t current_number;
static __thread uint32_t current_life;
static uint32_t context_life[1u << 16];

CUresult cb_context_enter(struct cb_request *q)
{
    uint16_t wanted = q->frame.context;
    if (wanted == current_number && (!wanted || current_life == context_life[wanted])) return CUDA_SUCCESS;
    CUcontext c = NULL;
    if (wanted) c = cb_object_of(q, CB_KIND_CONTEXT, cb_object_id(CB_KIND_CONTEXT, wanted - 1u));
    if (q->bad) return CB_MALFORMED;
    if (wanted && !c) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    CUresult result = CB_CALL(cuCtxSetCurrent)(c);
    if (result == CUDA_SUCCESS) {
        current_number = wanted;
        current_life = context_life[wanted];
    }
    return result;
}

CUresult cb_on_CONTEXT_PRIMARY(struct cb_request *q)
{
    CUdevice device = (CUdevice)cb_take_word(q);
    unsigned int flags = (unsigned int)cb_take_word(q);
    uint64_t id = cb_take_word(q);
    CUcontext c = NULL;
    if (!cb_taken(q)) return CB_MALFORMED;
    CUresult result = CB_CALL(cuDevicePrimaryCtxSetFlags_v2)(device, flags);
    if (result == CUDA_SUCCESS) result = CB_CALL(cuDevicePrimaryCtxRetain)(&c, device);
    if (result == CUDA_SUCCESS) {
        result = cb_object_named(q, CB_KIND_CONTEXT, id, c);
    }
    return result;
}

static CUresult context_take_ending(struct cb_request *q, CUcontext *c, uint64_t *id)
{
    *id = cb_take_word(q);
    *c = cb_object_of(q, CB_KIND_CONTEXT, *id);
    if (!cb_taken(q)) return CB_MALFORMED;
    if (!*c) return CUDA_ERROR_INVALID_CONTEXT;
    uint16_t number = (uint16_t)(cb_object_number(*id) + 1);
    if (current_number == number) {
        CB_CALL(cuCtxSetCurrent)(NULL);
        current_number = 0;
    }
    context_life[number]++;
    cb_pinned_context_ends();
    cb_watch_drop_context(number);
    cb_thread_drop_context(number);
    cb_object_gone(q, CB_KIND_CONTEXT, *id);
    return CUDA_SUCCESS;
}

CUresult cb_on_CONTEXT_RESET(struct cb_request *q)
{
    uint64_t id;
    CUcontext c;
    CUdevice device;
    CUresult result = context_take_ending(q, &c, &id);
    if (result == CUDA_SUCCESS) result = CB_CALL(cuCtxPushCurrent_v2)(c);
    if (result != CUDA_SUCCESS) return result;
    result = CB_CALL(cuCtxGetDevice)(&device);
    CB_CALL(cuCtxPopCurrent_v2)(NULL);
    if (result != CUDA_SUCCESS) return result;
    cb_release(q);
    return CB_CALL(cuDevicePrimaryCtxRelease_v2)(device);
}

CUresult cb_on_CONTEXT_CREATE(struct cb_request *q)
{
    unsigned int flags = (unsigned int)cb_take_word(q);
    CUdevice device = (CUdevice)cb_take_word(q);
    uint64_t id = cb_take_word(q);
    CUcontext c = NULL;
    if (!cb_taken(q)) return CB_MALFORMED;
    CUresult result = CB_CALL(cuCtxCreate_v2)(&c, flags, device);
    if (result != CUDA_SUCCESS) return result;
    CB_CALL(cuCtxPopCurrent_v2)(NULL);
    current_number = 0;
    CB_CALL(cuCtxSetCurrent)(NULL);
    return cb_object_named(q, CB_KIND_CONTEXT, id, c);
}

CUresult cb_on_CONTEXT_DESTROY(struct cb_request *q)
{
    uint64_t id;
    CUcontext c;
    CUresult result = context_take_ending(q, &c, &id);
    if (result != CUDA_SUCCESS) return result;
    cb_release(q); /* it waits for the work under way in the context */
    return CB_CALL(cuCtxDestroy_v2)(c);
}
