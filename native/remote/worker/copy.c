/*
 * Handlers of copies. Bulk data passes through pinned pieces, so that the driver copies one while the next is
 * received or the last is sent. Data from the program is stored when it has come; the copy itself is queued in
 * its stream.
 */
#include "remote/wire/box.h"
#include "remote/worker/generated.h"
#include "remote/worker/session.h"
#include "remote/worker/stage.h"

#define KEPT_MAX     (1u << 30)
#define PIECES_AHEAD 4 /* pieces that the driver copies before the first is sent */

/* The device end of a copy. */
struct place {
    enum { PLACE_LINE, PLACE_ARRAY, PLACE_BOX } kind;
    CUdeviceptr address;
    CUarray array;
    size_t offset;
    CUDA_MEMCPY3D box; /* the device end; the other end is filled in */
    struct cb_box size;
    size_t bytes;
    CUstream stream;
};

/* ---- one piece ---- */

static CUresult piece_copy_array(const struct place *p, size_t at, void *data, size_t bytes, bool in)
{
    if (in) return CB_CALL(cuMemcpyHtoAAsync_v2)(p->array, p->offset + at, data, bytes, p->stream);
    return CB_CALL(cuMemcpyAtoHAsync_v2)(data, p->array, p->offset + at, bytes, p->stream);
}

static CUresult piece_copy_linear(const struct place *p, size_t at, void *data, size_t bytes, bool in)
{
    if (in) return CB_CALL(cuMemcpyHtoDAsync_v2)(p->address + at, data, bytes, p->stream);
    return CB_CALL(cuMemcpyDtoHAsync_v2)(data, p->address + at, bytes, p->stream);
}

struct rows { /* a part of a box that is contiguous in our memory */
    size_t x, y, z, width, height, depth;
};

static CUresult piece_copy_rows(const struct place *p, const struct rows *r, void *data, bool in)
{
    CUDA_MEMCPY3D m = p->box;
    m.WidthInBytes = r->width;
    m.Height = r->height;
    m.Depth = r->depth;
    if (in) {
        m.srcMemoryType = CU_MEMORYTYPE_HOST;
        m.srcHost = data;
        m.srcPitch = r->width;
        m.srcHeight = r->height;
        m.dstXInBytes += r->x;
        m.dstY += r->y;
        m.dstZ += r->z;
    } else {
        m.dstMemoryType = CU_MEMORYTYPE_HOST;
        m.dstHost = data;
        m.dstPitch = r->width;
        m.dstHeight = r->height;
        m.srcXInBytes += r->x;
        m.srcY += r->y;
        m.srcZ += r->z;
    }
    return CB_CALL(cuMemcpy3DAsync_v2)(&m, p->stream);
}

/* Copy bytes [at, at + bytes) of a box, by rows: a piece may begin and end within a row. */
static CUresult piece_copy_box(const struct place *p, size_t at, uint8_t *data, size_t bytes, bool in)
{
    size_t width = p->size.width, height = p->size.height;
    CUresult result = CUDA_SUCCESS;
    for (size_t done = 0; done < bytes && result == CUDA_SUCCESS;) {
        size_t from = at + done, row = from / width, left = bytes - done;
        struct rows r = {from % width, row % height, row / height, width, 1, 1};
        if (r.x || left < width)
            r.width = width - r.x < left ? width - r.x : left;
        else
            r.height = left / width < height - r.y ? left / width : height - r.y;
        result = piece_copy_rows(p, &r, data + done, in);
        done += r.width * r.height;
    }
    return result;
}

static CUresult piece_copy(const struct place *p, size_t at, uint8_t *data, size_t bytes, bool in)
{
    if (p->kind == PLACE_LINE) return piece_copy_linear(p, at, data, bytes, in);
    return p->kind == PLACE_ARRAY ? piece_copy_array(p, at, data, bytes, in)
                                  : piece_copy_box(p, at, data, bytes, in);
}

/* ---- to the device ---- */

/* In a graph the copy runs at each launch, so its source data is kept until the session ends. */
static CUresult piece_capture(struct cb_request *q, const struct place *p, size_t at, size_t bytes)
{
    static size_t kept;
    uint8_t *data = kept > KEPT_MAX - CB_STAGE_BYTES ? NULL : malloc(CB_WORDS(bytes));
    if (!data) return CUDA_ERROR_OUT_OF_MEMORY;
    kept += bytes;
    return cb_bulk_receive(q, data, CB_WORDS(bytes)) ? piece_copy(p, at, data, bytes, true) : CB_MALFORMED;
}

static bool stream_is_captured(const struct place *p)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CB_CALL(cuStreamIsCapturing)(p->stream, &status) == CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static CUresult piece_receive(struct cb_request *q, const struct place *p, size_t at, size_t bytes)
{
    struct cb_stage *s = q->failed == CUDA_SUCCESS ? cb_stage_append(p->stream, CB_WORDS(bytes)) : NULL;
    if (!s) return q->failed == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : q->failed;
    uint8_t *data = s->data + s->filled;
    CUresult result = CB_MALFORMED;
    if (cb_bulk_receive(q, data, CB_WORDS(bytes))) {
        s->filled += CB_WORDS(bytes);
        result = piece_copy(p, at, data, bytes, true);
        if (result == CUDA_SUCCESS) result = cb_stage_used(s, p->stream);
    }
    cb_stage_release(s);
    return result;
}

static CUresult copy_from_program(struct cb_request *q, const struct place *p, bool waits)
{
    CUresult result = CUDA_SUCCESS;
    if (!cb_taken(q) || CB_WORDS(p->bytes) != q->bulk) return CB_MALFORMED;
    bool captured = q->failed == CUDA_SUCCESS && stream_is_captured(p);
    for (size_t at = 0; at < p->bytes && result == CUDA_SUCCESS; at += CB_STAGE_BYTES) {
        size_t bytes = p->bytes - at < CB_STAGE_BYTES ? p->bytes - at : CB_STAGE_BYTES;
        result = captured ? piece_capture(q, p, at, bytes) : piece_receive(q, p, at, bytes);
    }
    if (result != CUDA_SUCCESS || !waits) return result;
    cb_release(q);
    return CB_CALL(cuStreamSynchronize)(p->stream);
}

/* A command without an answer need not be waited for: what follows in the stream follows the copy. */
static bool answer_waits_for_copy(const struct cb_request *q, bool async)
{
    return !async && (q->frame.flags & CB_FRAME_ASKED);
}

/* ---- from the device ---- */

struct ahead {
    struct cb_stage *stage[PIECES_AHEAD];
    size_t bytes[PIECES_AHEAD], first, count;
};

static CUresult oldest_piece_send(struct cb_request *q, struct ahead *a, bool last)
{
    struct cb_stage *s = a->stage[a->first % PIECES_AHEAD];
    size_t bytes = a->bytes[a->first++ % PIECES_AHEAD];
    a->count--;
    CUresult result = cb_stage_wait(s);
    if (result == CUDA_SUCCESS) {
        q->answered = last;
        if (!cb_answer_part(q, s->data, bytes, last)) result = CB_MALFORMED;
    }
    cb_stage_release(s);
    return result;
}

static CUresult piece_start(const struct place *p, struct ahead *a, size_t at)
{
    size_t bytes = p->bytes - at < CB_STAGE_BYTES ? p->bytes - at : CB_STAGE_BYTES;
    struct cb_stage *s = cb_stage_take();
    if (!s) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = piece_copy(p, at, s->data, bytes, false);
    if (result == CUDA_SUCCESS) result = cb_stage_used(s, p->stream);
    if (result != CUDA_SUCCESS) {
        cb_stage_release(s);
        return result;
    }
    a->stage[(a->first + a->count) % PIECES_AHEAD] = s;
    a->bytes[(a->first + a->count) % PIECES_AHEAD] = bytes;
    a->count++;
    return CUDA_SUCCESS;
}

static CUresult copy_to_program(struct cb_request *q, const struct place *p)
{
    struct ahead a = {0};
    CUresult result = CUDA_SUCCESS;
    bool busy = q->failed == CUDA_SUCCESS && CB_CALL(cuStreamQuery)(p->stream) == CUDA_ERROR_NOT_READY;
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    for (size_t at = 0; (at < p->bytes || a.count) && result == CUDA_SUCCESS;) {
        if (at < p->bytes && a.count < PIECES_AHEAD) {
            result = piece_start(p, &a, at);
            at += CB_STAGE_BYTES;
        } else {
            if (busy) cb_release(q); /* earlier work is still under way in the stream */
            busy = false;
            result = oldest_piece_send(q, &a, at >= p->bytes && a.count == 1);
        }
    }
    while (a.count)
        cb_stage_release(a.stage[(a.first + --a.count) % PIECES_AHEAD]);
    return result; /* the program reads the rest of its answer as this failure */
}

/* ---- handlers ---- */

static struct place linear_place_take(struct cb_request *q, bool *async)
{
    struct place p = {.kind = PLACE_LINE};
    p.address = cb_take_word(q);
    p.bytes = cb_take_word(q);
    p.stream = cb_object_of(q, CB_KIND_STREAM, cb_take_word(q));
    *async = cb_take_word(q) != 0;
    return p;
}

CUresult cb_on_COPY_IN(struct cb_request *q)
{
    bool async;
    struct place p = linear_place_take(q, &async);
    return copy_from_program(q, &p, answer_waits_for_copy(q, async));
}

CUresult cb_on_COPY_OUT(struct cb_request *q)
{
    bool async;
    struct place p = linear_place_take(q, &async);
    return copy_to_program(q, &p);
}

static struct place array_place_take(struct cb_request *q, bool *async)
{
    struct place p = {.kind = PLACE_ARRAY};
    p.array = cb_object_of(q, CB_KIND_ARRAY, cb_take_word(q));
    p.offset = cb_take_word(q);
    p.bytes = cb_take_word(q);
    p.stream = cb_object_of(q, CB_KIND_STREAM, cb_take_word(q));
    *async = cb_take_word(q) != 0;
    return p;
}

CUresult cb_on_ARRAY_IN(struct cb_request *q)
{
    bool async;
    struct place p = array_place_take(q, &async);
    return copy_from_program(q, &p, answer_waits_for_copy(q, async));
}

CUresult cb_on_ARRAY_OUT(struct cb_request *q)
{
    bool async;
    struct place p = array_place_take(q, &async);
    return copy_to_program(q, &p);
}

/* ---- boxes ---- */

static struct cb_box_end box_end_take(struct cb_request *q, CUarray *array)
{
    struct cb_box_end e;
    e.is_array = cb_take_word(q);
    e.at = cb_take_word(q);
    e.pitch = cb_take_word(q);
    e.height = cb_take_word(q);
    e.x = cb_take_word(q);
    e.y = cb_take_word(q);
    e.z = cb_take_word(q);
    *array = e.is_array ? cb_object_of(q, CB_KIND_ARRAY, e.at) : NULL;
    return e;
}

static void box_set_source(CUDA_MEMCPY3D *m, const struct cb_box_end *e, CUarray array)
{
    m->srcMemoryType = e->is_array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
    m->srcDevice = e->is_array ? 0 : e->at;
    m->srcArray = array;
    m->srcPitch = e->pitch;
    m->srcHeight = e->height;
    m->srcXInBytes = e->x;
    m->srcY = e->y;
    m->srcZ = e->z;
}

static void box_set_target(CUDA_MEMCPY3D *m, const struct cb_box_end *e, CUarray array)
{
    m->dstMemoryType = e->is_array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
    m->dstDevice = e->is_array ? 0 : e->at;
    m->dstArray = array;
    m->dstPitch = e->pitch;
    m->dstHeight = e->height;
    m->dstXInBytes = e->x;
    m->dstY = e->y;
    m->dstZ = e->z;
}

static struct cb_box box_size_take(struct cb_request *q)
{
    struct cb_box b;
    b.width = cb_take_word(q);
    b.height = cb_take_word(q);
    b.depth = cb_take_word(q);
    if (!b.width || !b.height || !b.depth) q->bad = true;
    return b;
}

static struct place box_place_take(struct cb_request *q, bool in, bool *async)
{
    struct place p = {.kind = PLACE_BOX};
    CUarray array;
    struct cb_box_end e = box_end_take(q, &array);
    (in ? box_set_target : box_set_source)(&p.box, &e, array);
    p.size = box_size_take(q);
    if (p.size.width > CB_BULK_MAX || p.size.height > CB_BULK_MAX || p.size.depth > CB_BULK_MAX ||
        p.size.width * p.size.height > CB_BULK_MAX ||
        p.size.width * p.size.height * p.size.depth > CB_BULK_MAX)
        q->bad = true;
    p.bytes = p.size.width * p.size.height * p.size.depth;
    p.stream = cb_object_of(q, CB_KIND_STREAM, cb_take_word(q));
    *async = cb_take_word(q) != 0;
    return p;
}

CUresult cb_on_BOX_IN(struct cb_request *q)
{
    bool async;
    struct place p = box_place_take(q, true, &async);
    return copy_from_program(q, &p, answer_waits_for_copy(q, async));
}

CUresult cb_on_BOX_OUT(struct cb_request *q)
{
    bool async;
    struct place p = box_place_take(q, false, &async);
    return copy_to_program(q, &p);
}

static CUresult box_copy_on_device(const CUDA_MEMCPY3D *m, CUcontext to, CUcontext from, CUstream stream,
                                   bool async)
{
    CUDA_MEMCPY3D_PEER peer = {.srcXInBytes = m->srcXInBytes,
                               .srcY = m->srcY,
                               .srcZ = m->srcZ,
                               .srcMemoryType = m->srcMemoryType,
                               .srcDevice = m->srcDevice,
                               .srcArray = m->srcArray,
                               .srcContext = from,
                               .srcPitch = m->srcPitch,
                               .srcHeight = m->srcHeight,
                               .dstXInBytes = m->dstXInBytes,
                               .dstY = m->dstY,
                               .dstZ = m->dstZ,
                               .dstMemoryType = m->dstMemoryType,
                               .dstDevice = m->dstDevice,
                               .dstArray = m->dstArray,
                               .dstContext = to,
                               .dstPitch = m->dstPitch,
                               .dstHeight = m->dstHeight,
                               .WidthInBytes = m->WidthInBytes,
                               .Height = m->Height,
                               .Depth = m->Depth};
    if (async) return CB_CALL(cuMemcpy3DPeerAsync)(&peer, stream);
    return CB_CALL(cuMemcpy3DPeer)(&peer);
}

CUresult cb_on_BOX_WITHIN(struct cb_request *q)
{
    CUDA_MEMCPY3D m = {0};
    CUarray to_array, from_array;
    struct cb_box_end to = box_end_take(q, &to_array), from = box_end_take(q, &from_array);
    struct cb_box size = box_size_take(q);
    CUstream stream = cb_object_of(q, CB_KIND_STREAM, cb_take_word(q));
    bool async = cb_take_word(q) != 0, peer = cb_take_word(q) != 0;
    CUcontext to_context = peer ? cb_object_of(q, CB_KIND_CONTEXT, cb_take_word(q)) : NULL;
    CUcontext from_context = peer ? cb_object_of(q, CB_KIND_CONTEXT, cb_take_word(q)) : NULL;
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    box_set_target(&m, &to, to_array);
    box_set_source(&m, &from, from_array);
    m.WidthInBytes = size.width;
    m.Height = size.height;
    m.Depth = size.depth;
    if (async || !(q->frame.flags & CB_FRAME_ASKED))
        return peer ? box_copy_on_device(&m, to_context, from_context, stream, true)
                    : CB_CALL(cuMemcpy3DAsync_v2)(&m, stream);
    cb_release(q);
    return peer ? box_copy_on_device(&m, to_context, from_context, stream, false)
                : CB_CALL(cuMemcpy3D_v2)(&m);
}
