/* Hooks of memory pool attributes: their size follows from their name. */
#include "remote/client/connection/session.h"

static size_t attribute_bytes(CUmemPool_attribute a)
{
    return a <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES ? sizeof(int) : sizeof(cuuint64_t);
}

static CUresult attribute_ask(struct cb_call *call, enum cb_op op, CUmemoryPool pool,
                              CUmemPool_attribute attr, uint64_t value)
{
    CB_OK(cb_call_begin(call, op, CB_ANYWHERE));
    cb_put_handle(call, CB_KIND_POOL, (uintptr_t)pool);
    cb_put_word(call, (uint64_t)attr);
    cb_put_word(call, value);
    return cb_call_ask(call);
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    struct cb_call call;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(attribute_ask(&call, CB_OP_POOL_GET, pool, attr, 0));
    uint64_t v = cb_take_word(&call);
    memcpy(value, &v, attribute_bytes(attr));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    struct cb_call call;
    uint64_t v = 0;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&v, value, attribute_bytes(attr));
    return attribute_ask(&call, CB_OP_POOL_SET, pool, attr, v);
}
