/* Copies: bulk data is taken in pieces that stay in the processor's cache, and given in the same. */
#include "remote/worker/generated.h"
#include "remote/worker/session.h"

#define PIECE_BYTES (256u << 10)

struct copy {
    CUdeviceptr device;
    size_t bytes;
    CUstream stream;
    bool async;
};

static struct copy take(struct cb_request *q)
{
    struct copy c;
    c.device = cb_take_word(q);
    c.bytes = cb_take_word(q);
    c.stream = cb_object_of(q, CB_KIND_STREAM, cb_take_word(q));
    c.async = cb_take_word(q) != 0;
    return c;
}

static __thread uint8_t piece[PIECE_BYTES] __attribute__((aligned(4096)));

static CUresult piece_in(const struct copy *c, size_t at, size_t bytes)
{
    if (!c->async) return CB_CALL(cuMemcpyHtoD_v2)(c->device + at, piece, bytes);
    CUresult result = CB_CALL(cuMemcpyHtoDAsync_v2)(c->device + at, piece, bytes, c->stream);
    return result; /* from pageable memory: the driver has taken it when it returns */
}

CUresult cb_on_COPY_IN(struct cb_request *q)
{
    struct copy c = take(q);
    (void)cb_take_word(q); /* whether it is asked; the frame says so too */
    if (!cb_taken(q) || CB_WORDS(c.bytes) != q->bulk) return CB_MALFORMED;
    CUresult result = q->failed;
    for (size_t at = 0; at < c.bytes; at += PIECE_BYTES) {
        size_t bytes = c.bytes - at < PIECE_BYTES ? c.bytes - at : PIECE_BYTES;
        if (!cb_bulk_receive(q, piece, CB_WORDS(bytes))) return CB_MALFORMED;
        if (result == CUDA_SUCCESS) result = piece_in(&c, at, bytes);
    }
    return result;
}

static CUresult piece_out(const struct copy *c, size_t at, size_t bytes)
{
    if (!c->async) return CB_CALL(cuMemcpyDtoH_v2)(piece, c->device + at, bytes);
    CUresult result = CB_CALL(cuMemcpyDtoHAsync_v2)(piece, c->device + at, bytes, c->stream);
    return result == CUDA_SUCCESS ? CB_CALL(cuStreamSynchronize)(c->stream) : result;
}

CUresult cb_on_COPY_OUT(struct cb_request *q)
{
    struct copy c = take(q);
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    if (CB_CALL(cuStreamQuery)(c.stream) == CUDA_ERROR_NOT_READY) cb_release(q);
    for (size_t at = 0; at < c.bytes; at += PIECE_BYTES) {
        size_t bytes = c.bytes - at < PIECE_BYTES ? c.bytes - at : PIECE_BYTES;
        CUresult result = piece_out(&c, at, bytes);
        if (result != CUDA_SUCCESS)
            return result; /* the program reads the rest of its answer as this failure */
        q->answered = at + bytes == c.bytes;
        if (!cb_answer_part(q, piece, bytes, q->answered)) return CB_MALFORMED;
    }
    return CUDA_SUCCESS;
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
