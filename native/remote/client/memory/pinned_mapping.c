#include "remote/client/memory/pinned_mapping.h"

#include "remote/client/connection/call.h"
#include "remote/client/memory/memory_ranges.h"
#include "remote/client/memory/mirrored_memory.h"

bool cb_arena_used;

static pthread_mutex_t mapping_lock = PTHREAD_MUTEX_INITIALIZER;

static CUresult pinned_map_range(const struct cb_range *r)
{
    struct cb_call call;
    uint64_t bytes = (r->bytes + 4095) & ~4095ull;
    CB_OK(cb_call_begin(&call, CB_OP_TWIN_MAP, CB_IN_CONTEXT));
    cb_put_word(&call, r->address);
    cb_put_word(&call, bytes);
    CB_OK(cb_call_ask(&call));
    if (!cb_mirror_add(r->address, bytes, false)) return CUDA_ERROR_OUT_OF_MEMORY;
    cb_range_mark_mirrored(r->address);
    return CUDA_SUCCESS;
}

CUresult cb_pinned_map(uint64_t address)
{
    struct cb_range r;
    pthread_mutex_lock(&mapping_lock);
    CUresult result = CUDA_SUCCESS;
    if (cb_range_of(address, &r) && r.memory == CB_MEMORY_HOST && !r.mirrored) result = pinned_map_range(&r);
    pthread_mutex_unlock(&mapping_lock);
    return result;
}

static CUresult pinned_map_words(const void *data, size_t bytes)
{
    uint64_t word;
    for (size_t at = 0; at + sizeof word <= bytes; at += sizeof word) {
        memcpy(&word, (const char *)data + at, sizeof word);
        CB_OK(cb_pinned_map_for(word));
    }
    return CUDA_SUCCESS;
}

CUresult cb_pinned_map_parameters(void **parameters, void **extra, const struct cb_function *f)
{
    const void *buffer = NULL;
    size_t bytes = 0;
    for (uint32_t i = 0; parameters && i < f->parameters; i++) {
        if (parameters[i]) CB_OK(pinned_map_words(parameters[i], f->parameter[i].bytes));
    }
    for (int i = 0; extra && i < 16 && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[i + 1];
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[i + 1]) bytes = *(const size_t *)extra[i + 1];
    }
    return buffer && bytes <= CB_PARAMETER_BYTES ? pinned_map_words(buffer, bytes) : CUDA_SUCCESS;
}
