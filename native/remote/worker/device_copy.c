/*
 * Handlers of copies and fills of device memory, and of pointer attributes. A command without an answer uses
 * the asynchronous form.
 */
#include "remote/worker/generated.h"

static bool command_waits(const struct cb_request *q, bool async)
{
    return !async && (q->frame.flags & CB_FRAME_ASKED);
}

CUresult cb_on_COPY_WITHIN(struct cb_request *q)
{
    CUdeviceptr to = cb_take_word(q);
    size_t bytes = cb_take_word(q);
    CUstream stream = cb_object_of(q, CB_KIND_STREAM, cb_take_word(q));
    bool async = cb_take_word(q) != 0;
    CUdeviceptr from = cb_take_word(q);
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    if (!command_waits(q, async)) return CB_CALL(cuMemcpyDtoDAsync_v2)(to, from, bytes, stream);
    cb_release(q);
    return CB_CALL(cuMemcpyDtoD_v2)(to, from, bytes);
}

CUresult cb_on_COPY_PEER(struct cb_request *q)
{
    CUdeviceptr to = cb_take_word(q);
    size_t bytes = cb_take_word(q);
    CUstream stream = cb_object_of(q, CB_KIND_STREAM, cb_take_word(q));
    bool async = cb_take_word(q) != 0;
    CUdeviceptr from = cb_take_word(q);
    CUcontext there = cb_object_of(q, CB_KIND_CONTEXT, cb_take_word(q));
    CUcontext here = cb_object_of(q, CB_KIND_CONTEXT, cb_take_word(q));
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    if (!command_waits(q, async)) return CB_CALL(cuMemcpyPeerAsync)(to, there, from, here, bytes, stream);
    cb_release(q);
    return CB_CALL(cuMemcpyPeer)(to, there, from, here, bytes);
}

struct fill {
    CUdeviceptr to;
    size_t pitch, width, height;
    unsigned int value, element;
    CUstream stream;
};

static CUresult fill_asynchronously(const struct fill *f)
{
    switch (f->element) {
    case 1:
        return CB_CALL(cuMemsetD2D8Async)(f->to, f->pitch, (unsigned char)f->value, f->width, f->height,
                                          f->stream);
    case 2:
        return CB_CALL(cuMemsetD2D16Async)(f->to, f->pitch, (unsigned short)f->value, f->width, f->height,
                                           f->stream);
    case 4:
        return CB_CALL(cuMemsetD2D32Async)(f->to, f->pitch, f->value, f->width, f->height, f->stream);
    default:
        return CB_MALFORMED;
    }
}

static CUresult fill_and_wait(const struct fill *f)
{
    switch (f->element) {
    case 1:
        return CB_CALL(cuMemsetD2D8_v2)(f->to, f->pitch, (unsigned char)f->value, f->width, f->height);
    case 2:
        return CB_CALL(cuMemsetD2D16_v2)(f->to, f->pitch, (unsigned short)f->value, f->width, f->height);
    case 4:
        return CB_CALL(cuMemsetD2D32_v2)(f->to, f->pitch, f->value, f->width, f->height);
    default:
        return CB_MALFORMED;
    }
}

CUresult cb_on_FILL(struct cb_request *q)
{
    struct fill f;
    f.to = cb_take_word(q);
    f.pitch = cb_take_word(q);
    f.value = (unsigned int)cb_take_word(q);
    f.element = (unsigned int)cb_take_word(q);
    f.width = cb_take_word(q);
    f.height = cb_take_word(q);
    f.stream = cb_object_of(q, CB_KIND_STREAM, cb_take_word(q));
    bool async = cb_take_word(q) != 0;
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    if (!command_waits(q, async)) return fill_asynchronously(&f);
    cb_release(q);
    return fill_and_wait(&f);
}

CUresult cb_on_POINTER(struct cb_request *q)
{
    CUpointer_attribute attribute = (CUpointer_attribute)cb_take_word(q);
    CUdeviceptr pointer = cb_take_word(q);
    uint64_t value[8] = {0};
    if (!cb_taken(q)) return CB_MALFORMED;
    if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS) return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = CB_CALL(cuPointerGetAttribute)(value, attribute, pointer);
    if (result == CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_CONTEXT)
        value[0] = cb_object_name(q, CB_KIND_CONTEXT, (void *)(uintptr_t)value[0]);
    if (result == CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)
        value[0] = cb_object_name(q, CB_KIND_POOL, (void *)(uintptr_t)value[0]);
    cb_give_word(q, value[0]);
    cb_give_word(q, value[1]);
    return result;
}

CUresult cb_on_RETAIN(struct cb_request *q)
{
    void *address = (void *)(uintptr_t)cb_take_word(q);
    CUmemGenericAllocationHandle handle = 0;
    if (!cb_taken(q)) return CB_MALFORMED;
    CUresult result = CB_CALL(cuMemRetainAllocationHandle)(&handle, address);
    cb_give_word(q, cb_object_name(q, CB_KIND_ALLOCATION, (void *)(uintptr_t)handle));
    return result;
}
