/* Handlers of the driver's linkers; options and log buffers live as long as the linker. */
#include "remote/worker/generated.h"
#include "remote/worker/image_upload.h"
#include "remote/worker/jit_options.h"
#include "remote/worker/session.h"

struct linker {
    CUlinkState state;
    struct cb_jit jit;
    void *cubin; /* owned by the driver */
    size_t bytes;
};

static struct linker *linker_take(struct cb_request *q, uint64_t *id)
{
    *id = cb_take_word(q);
    return cb_object_of(q, CB_KIND_LINKER, *id);
}

static void outcome_put(struct cb_request *q, CUresult result, const struct cb_jit *j)
{
    cb_give_word(q, result == CUDA_SUCCESS ? CB_CODE_DONE : CB_CODE_FAILED);
    cb_give_word(q, (uint64_t)result);
    cb_jit_give(q, j);
}

static void linker_end(struct linker *l)
{
    if (l->state) CB_CALL(cuLinkDestroy)(l->state);
    cb_jit_free(&l->jit);
    free(l);
}

CUresult cb_on_LINKER_CREATE(struct cb_request *q)
{
    uint64_t id = cb_take_word(q);
    struct linker *l = calloc(1, sizeof *l);
    if (!l) return CUDA_ERROR_OUT_OF_MEMORY;
    cb_jit_take(q, &l->jit);
    CUresult result = cb_taken(q) ? CUDA_SUCCESS : CB_MALFORMED;
    if (result == CUDA_SUCCESS)
        result = CB_CALL(cuLinkCreate_v2)(l->jit.count, l->jit.option, l->jit.value, &l->state);
    if (result == CUDA_SUCCESS) result = cb_object_named(q, CB_KIND_LINKER, id, l);
    outcome_put(q, result, &l->jit);
    if (result != CUDA_SUCCESS) linker_end(l);
    return result == CB_MALFORMED ? result : CUDA_SUCCESS;
}

CUresult cb_on_LINKER_ADD(struct cb_request *q)
{
    uint64_t id;
    size_t bytes;
    struct cb_jit jit;
    struct linker *l = linker_take(q, &id);
    CUjitInputType type = (CUjitInputType)cb_take_word(q);
    const void *data = cb_upload_named(q, &bytes);
    const char *name = cb_take_string(q);
    cb_jit_take(q, &jit);
    CUresult result = cb_taken(q) ? CUDA_SUCCESS : CB_MALFORMED;
    if (result == CUDA_SUCCESS && !l) result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS && !data) {
        cb_give_word(q, CB_CODE_UNKNOWN);
        cb_give_word(q, CUDA_SUCCESS);
        cb_jit_give(q, &l->jit);
    } else if (result == CUDA_SUCCESS) {
        result =
            CB_CALL(cuLinkAddData_v2)(l->state, type, (void *)data, bytes, *name ? name : NULL, jit.count,
                                      jit.count ? jit.option : NULL, jit.count ? jit.value : NULL);
        outcome_put(q, result, &l->jit);
        cb_jit_give(q, &jit);
        result = CUDA_SUCCESS;
    }
    cb_jit_free(&jit);
    return result;
}

/* Store the linked image: the program will load it, and then it need not be sent back. */
static void cubin_store(const struct linker *l)
{
    uint8_t hash[CB_HASH_BYTES], *copy = malloc(CB_WORDS(l->bytes) + 8);
    if (!copy) return;
    memcpy(copy, l->cubin, l->bytes);
    memset(copy + l->bytes, 0, CB_WORDS(l->bytes) + 8 - l->bytes);
    cb_hash(copy, l->bytes, hash);
    cb_images_put(hash, copy, l->bytes);
}

CUresult cb_on_LINKER_COMPLETE(struct cb_request *q)
{
    uint64_t id;
    struct linker *l = linker_take(q, &id);
    if (!cb_taken(q)) return CB_MALFORMED;
    if (!l) return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = CB_CALL(cuLinkComplete)(l->state, &l->cubin, &l->bytes);
    if (result != CUDA_SUCCESS) l->bytes = 0;
    outcome_put(q, result, &l->jit);
    cb_give_word(q, l->bytes);
    if (result == CUDA_SUCCESS) cubin_store(l);
    return CUDA_SUCCESS;
}

CUresult cb_on_LINKER_FETCH(struct cb_request *q)
{
    uint64_t id;
    struct linker *l = linker_take(q, &id);
    if (!cb_taken(q)) return CB_MALFORMED;
    if (!l || !l->bytes) return CUDA_ERROR_INVALID_HANDLE;
    size_t words = CB_WORDS(l->bytes);
    uint8_t *copy = calloc(1, words);
    if (!copy) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(copy, l->cubin, l->bytes);
    bool ok = true;
    for (size_t at = 0; at < words && ok; at += CB_BULK_MAX) {
        size_t part = words - at < CB_BULK_MAX ? words - at : CB_BULK_MAX;
        q->answered = at + part == words;
        ok = cb_answer_part(q, copy + at, part, q->answered);
    }
    free(copy);
    return ok ? CUDA_SUCCESS : CB_MALFORMED;
}

CUresult cb_on_LINKER_DESTROY(struct cb_request *q)
{
    uint64_t id;
    struct linker *l = linker_take(q, &id);
    if (!cb_taken(q)) return CB_MALFORMED;
    if (!l) return CUDA_ERROR_INVALID_HANDLE;
    linker_end(l);
    cb_object_gone(q, CB_KIND_LINKER, id);
    return CUDA_SUCCESS;
}
