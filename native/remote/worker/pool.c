#include "remote/worker/generated.h"

CUresult cb_on_POOL_GET(struct cb_request *q)
{
    CUmemoryPool pool = cb_object_of(q, CB_KIND_POOL, cb_take_word(q));
    CUmemPool_attribute attr = (CUmemPool_attribute)cb_take_word(q);
    uint64_t value[8] = {0};
    (void)cb_take_word(q);
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    CUresult result = CB_CALL(cuMemPoolGetAttribute)(pool, attr, value);
    cb_give_word(q, value[0]);
    return result;
}

CUresult cb_on_POOL_SET(struct cb_request *q)
{
    CUmemoryPool pool = cb_object_of(q, CB_KIND_POOL, cb_take_word(q));
    CUmemPool_attribute attr = (CUmemPool_attribute)cb_take_word(q);
    uint64_t value[8] = {cb_take_word(q)};
    if (!cb_taken(q)) return CB_MALFORMED;
    return q->failed == CUDA_SUCCESS ? CB_CALL(cuMemPoolSetAttribute)(pool, attr, value) : q->failed;
}
