#include "remote/worker/object.h"

#include "remote/worker/thread_streams.h"

#define CHUNK 1024u

static struct side {
    void **chunk[CB_OBJECTS_MAX / CHUNK];
    uint32_t used; /* numbers assigned by the worker; freed ones are reused only after a search */
} sides[2][CB_KIND_COUNT];

static void **object_slot(enum cb_kind kind, uint32_t number, bool make)
{
    struct side *s = &sides[number >= CB_WORKER_NUMBER][kind];
    number &= CB_WORKER_NUMBER - 1;
    if (number >= CB_OBJECTS_MAX) return NULL;
    void ***chunk = &s->chunk[number / CHUNK];
    if (!*chunk && make) *chunk = calloc(CHUNK, sizeof **chunk);
    return *chunk ? &(*chunk)[number % CHUNK] : NULL;
}

void *cb_object_of(struct cb_request *q, enum cb_kind kind, uint64_t id)
{
    if (kind == CB_KIND_STREAM && id <= 2) return id == 2 ? cb_thread_stream(q) : (void *)(uintptr_t)id;
    void **slot = cb_object_is(id, kind) ? object_slot(kind, cb_object_number(id), false) : NULL;
    if (!slot) {
        q->bad = true;
        return NULL;
    }
    if (!*slot && q->failed == CUDA_SUCCESS) /* creating it failed, which was reported */
        q->failed = kind == CB_KIND_CONTEXT      ? CUDA_ERROR_INVALID_CONTEXT
                    : kind == CB_KIND_ALLOCATION ? CUDA_ERROR_INVALID_VALUE
                                                 : CUDA_ERROR_INVALID_HANDLE;
    return *slot;
}

CUresult cb_object_named(struct cb_request *q, enum cb_kind kind, uint64_t id, void *handle)
{
    void **slot = NULL;
    if (cb_object_is(id, kind) && cb_object_number(id) < CB_WORKER_NUMBER)
        slot = object_slot(kind, cb_object_number(id), true);
    if (!slot || *slot) {
        q->bad = true;
        return CB_MALFORMED;
    }
    *slot = handle;
    return CUDA_SUCCESS;
}

uint64_t cb_object_name(struct cb_request *q, enum cb_kind kind, void *handle)
{
    (void)q;
    if (!handle) return 0;
    for (int side = 0; side < 2; side++) {
        for (uint32_t c = 0; c < CB_OBJECTS_MAX / CHUNK && sides[side][kind].chunk[c]; c++) {
            for (uint32_t i = 0; i < CHUNK; i++) {
                if (sides[side][kind].chunk[c][i] == handle)
                    return cb_object_id(kind, (side ? CB_WORKER_NUMBER : 0) + c * CHUNK + i);
            }
        }
    }
    struct side *s = &sides[1][kind];
    void **slot = object_slot(kind, CB_WORKER_NUMBER + s->used, true);
    if (!slot) return 0;
    *slot = handle;
    return cb_object_id(kind, CB_WORKER_NUMBER + s->used++);
}

void cb_object_gone(struct cb_request *q, enum cb_kind kind, uint64_t id)
{
    void **slot = cb_object_is(id, kind) ? object_slot(kind, cb_object_number(id), false) : NULL;
    if (!slot)
        q->bad = true;
    else
        *slot = NULL;
}
