/*
 * Copies of rows and slices, to and from arrays. Rows of host memory are gathered here; a large box is sent in
 * parts.
 */
#include "remote/client/api/object_table.h"
#include "remote/client/memory/copy.h"
#include "remote/client/memory/memory_ranges.h"
#include "remote/wire/box.h"

#define GATHER_MAX (1u << 20) /* bytes of gathered rows */

struct host_end {
    uint8_t *base;
    uint64_t pitch, slice;
};

struct end { /* as programs describe an end of a copy */
    CUmemorytype type;
    uint64_t host, device, pitch, height, x, y, z;
    CUarray array;
};

struct job {
    struct cb_box box;
    struct cb_box_end there, other; /* `other`: the source if both ends are at the worker */
    struct host_end here;
    bool out, within;
    CUstream stream;
    bool async;
    CUcontext to_context, from_context;
};

/* ---- parts ---- */

static void end_put(struct cb_call *c, const struct cb_box_end *e)
{
    const uint64_t words[] = {e->is_array, e->at, e->pitch, e->height, e->x, e->y, e->z};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        cb_put_word(c, words[i]);
}

static void box_put(struct cb_call *c, const struct cb_box *b)
{
    cb_put_word(c, b->width);
    cb_put_word(c, b->height);
    cb_put_word(c, b->depth);
}

static void copy_options_put(struct cb_call *c, const struct job *j)
{
    cb_put_handle(c, CB_KIND_STREAM, (uintptr_t)j->stream);
    cb_put_word(c, j->async);
}

struct part {
    uint64_t x, y, z;
    struct cb_box box;
};

static bool box_is_dense(const struct job *j, const struct cb_box *b)
{
    if (b->depth > 1 && j->here.slice != b->width * b->height) return false;
    return b->height == 1 || j->here.pitch == b->width;
}

static uint8_t *part_row(const struct job *j, const struct part *p, uint64_t y, uint64_t z)
{
    return j->here.base + (p->z + z) * j->here.slice + (p->y + y) * j->here.pitch + p->x;
}

static void rows_move(const struct job *j, const struct part *p, uint8_t *packed)
{
    for (uint64_t z = 0; z < p->box.depth; z++) {
        for (uint64_t y = 0; y < p->box.height; y++, packed += p->box.width) {
            if (j->out)
                memcpy(part_row(j, p, y, z), packed, p->box.width);
            else
                memcpy(packed, part_row(j, p, y, z), p->box.width);
        }
    }
}

static CUresult part_send(const struct job *j, const struct part *p, uint8_t *packed)
{
    struct cb_call call;
    struct cb_box_end there = j->there;
    size_t bytes = p->box.width * p->box.height * p->box.depth;
    bool dense = box_is_dense(j, &p->box);
    uint8_t *data = dense ? part_row(j, p, 0, 0) : packed;
    there.x += p->x;
    there.y += p->y;
    there.z += p->z;
    if (!j->out && !dense) rows_move(j, p, packed);
    CB_OK(cb_call_begin(&call, j->out ? CB_OP_BOX_OUT : CB_OP_BOX_IN, CB_IN_CONTEXT));
    end_put(&call, &there);
    box_put(&call, &p->box);
    copy_options_put(&call, j);
    if (!j->out) return cb_call_exchange(&call, data, bytes, NULL, 0);
    CB_OK(cb_call_exchange(&call, NULL, 0, data, bytes));
    if (!dense) rows_move(j, p, packed);
    return CUDA_SUCCESS;
}

/* The largest part that fits a frame: slices, or rows of one, or a piece of a row. */
static struct part part_at(const struct job *j, uint64_t x, uint64_t y, uint64_t z, size_t capacity)
{
    const struct cb_box *b = &j->box;
    struct part p = {x, y, z, {b->width, b->height, 1}};
    if (b->width > capacity) {
        p.box.width = b->width - x < capacity ? b->width - x : capacity;
        p.box.height = 1;
    } else if (b->width * b->height > capacity) {
        uint64_t rows = capacity / b->width;
        p.box.height = b->height - y < rows ? b->height - y : rows;
    } else {
        uint64_t slices = capacity / (b->width * b->height);
        p.box.depth = b->depth - z < slices ? b->depth - z : slices;
    }
    return p;
}

static CUresult copy_in_parts(const struct job *j)
{
    size_t capacity = box_is_dense(j, &j->box) ? CB_BULK_MAX : GATHER_MAX;
    size_t whole = j->box.width * j->box.height * j->box.depth;
    uint8_t *packed = malloc(whole < capacity ? whole : capacity);
    CUresult result = packed ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (uint64_t x = 0, y = 0, z = 0; z < j->box.depth && result == CUDA_SUCCESS;) {
        struct part p = part_at(j, x, y, z, capacity);
        result = part_send(j, &p, packed);
        x += p.box.width;
        if (x < j->box.width) continue;
        x = 0;
        y += p.box.height;
        if (y < j->box.height) continue;
        y = 0;
        z += p.box.depth;
    }
    free(packed);
    return result;
}

/* Return true if it is memory that we know, so that a copy cannot fail by its addresses. */
static bool end_is_known(const struct cb_box_end *e, const struct cb_box *b)
{
    uint64_t pitch = e->pitch ? e->pitch : b->width,
             slice = e->height ? pitch * e->height : pitch * b->height;
    uint64_t start = e->at + e->z * slice + e->y * pitch + e->x;
    return !e->is_array &&
           cb_range_is_device(start, (b->depth - 1) * slice + (b->height - 1) * pitch + b->width);
}

static CUresult copy_between_devices(const struct job *j)
{
    struct cb_call call;
    CB_OK(cb_call_begin(&call, CB_OP_BOX_WITHIN, CB_IN_CONTEXT));
    end_put(&call, &j->there);
    end_put(&call, &j->other);
    box_put(&call, &j->box);
    copy_options_put(&call, j);
    bool peer = j->to_context || j->from_context;
    cb_put_word(&call, peer);
    if (peer) {
        cb_put_handle(&call, CB_KIND_CONTEXT, (uintptr_t)j->to_context);
        cb_put_handle(&call, CB_KIND_CONTEXT, (uintptr_t)j->from_context);
    }
    bool known = end_is_known(&j->there, &j->box) && end_is_known(&j->other, &j->box);
    return cb_copy_finish(&call, !known, !j->async);
}

/* ---- location of the ends ---- */

/* Return true for host memory that the worker does not have; its address is stored in *address. */
static bool end_is_here(const struct end *e, uint64_t *address)
{
    struct cb_range r;
    if (e->type == CU_MEMORYTYPE_ARRAY) return false;
    *address = e->type == CU_MEMORYTYPE_HOST ? e->host : e->device;
    if (e->type == CU_MEMORYTYPE_DEVICE && !cb_range_of(*address, &r)) return false;
    return cb_range_is_here(*address);
}

static CUresult end_resolve(const struct end *e, const struct cb_box *b, struct cb_box_end *there,
                            struct host_end *here, bool *host)
{
    uint64_t address = 0, pitch = e->pitch ? e->pitch : b->width, slice = e->pitch * e->height;
    if (e->type < CU_MEMORYTYPE_HOST || e->type > CU_MEMORYTYPE_UNIFIED) return CUDA_ERROR_INVALID_VALUE;
    *host = end_is_here(e, &address);
    if (e->type == CU_MEMORYTYPE_ARRAY) {
        if (!cb_object_alive((uintptr_t)e->array, CB_KIND_ARRAY)) return CUDA_ERROR_INVALID_HANDLE;
        *there = (struct cb_box_end){1, (uintptr_t)e->array, 0, 0, e->x, e->y, e->z};
        return CUDA_SUCCESS;
    }
    if (b->height > 1 && pitch < b->width) return CUDA_ERROR_INVALID_VALUE;
    *there = (struct cb_box_end){0, address, e->pitch, e->height, e->x, e->y, e->z};
    *here = (struct host_end){(uint8_t *)(address + e->z * slice + e->y * e->pitch + e->x), pitch,
                              slice ? slice : pitch * b->height};
    return (uint64_t)here->base < 4096 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult copy_between_hosts(const struct job *j, const struct host_end *from)
{
    CB_OK(cuStreamSynchronize(j->stream));
    for (uint64_t z = 0; z < j->box.depth; z++) {
        for (uint64_t y = 0; y < j->box.height; y++)
            memmove(j->here.base + z * j->here.slice + y * j->here.pitch,
                    from->base + z * from->slice + y * from->pitch, j->box.width);
    }
    return CUDA_SUCCESS;
}

/*
 * Copy a box between two ends: a contiguous run of bytes between host and device memory is copied as linear
 * memory.
 */
static CUresult copy_box(struct job *j, const struct end *to, const struct end *from)
{
    struct host_end source = {0};
    struct cb_box_end from_there = {0};
    bool to_host, from_host;
    const struct cb_box *b = &j->box;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (b->width > 1ull << 46 || b->height > 1ull << 32 || b->depth > 1ull << 32)
        return CUDA_ERROR_INVALID_VALUE;
    if (!b->width || !b->height || !b->depth) return CUDA_SUCCESS;
    CB_OK(end_resolve(to, b, &j->there, &j->here, &to_host));
    CB_OK(end_resolve(from, b, &from_there, &source, &from_host));
    CB_OK(cb_stream_check(j->stream));
    if (to_host && from_host) return copy_between_hosts(j, &source);
    if (!to_host && !from_host) {
        j->other = from_there;
        return copy_between_devices(j);
    }
    j->out = to_host;
    uint64_t device = to_host ? (uint64_t)source.base : (uint64_t)j->here.base;
    bool line = b->height == 1 && b->depth == 1 && !(to_host ? from_there : j->there).is_array;
    if (to_host)
        j->there = from_there;
    else
        j->here = source;
    if (!line) return copy_in_parts(j);
    if (to_host) return cb_copy_out(j->here.base, device, b->width, j->stream, j->async);
    return cb_copy_in(device, j->here.base, b->width, j->stream, j->async);
}

/* ---- hooks ---- */

static CUresult copy_box_2d(const CUDA_MEMCPY2D *p, CUstream stream, bool async)
{
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    struct end to = {p->dstMemoryType, (uint64_t)p->dstHost, p->dstDevice, p->dstPitch,
                     p->Height,        p->dstXInBytes,       p->dstY,      0,
                     p->dstArray};
    struct end from = {p->srcMemoryType, (uint64_t)p->srcHost, p->srcDevice, p->srcPitch,
                       p->Height,        p->srcXInBytes,       p->srcY,      0,
                       p->srcArray};
    struct job j = {.box = {p->WidthInBytes, p->Height, 1}, .stream = stream, .async = async};
    return copy_box(&j, &to, &from);
}

EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_box_2d(pCopy, NULL, false);
}

EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_box_2d(pCopy, NULL, false);
}

EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream)
{
    return copy_box_2d(pCopy, hStream, true);
}

#define ENDS_3D(p)                                                                                \
    struct end to = {(p)->dstMemoryType, (uint64_t)(p)->dstHost, (p)->dstDevice, (p)->dstPitch,   \
                     (p)->dstHeight,     (p)->dstXInBytes,       (p)->dstY,      (p)->dstZ,       \
                     (p)->dstArray};                                                              \
    struct end from = {(p)->srcMemoryType, (uint64_t)(p)->srcHost, (p)->srcDevice, (p)->srcPitch, \
                       (p)->srcHeight,     (p)->srcXInBytes,       (p)->srcY,      (p)->srcZ,     \
                       (p)->srcArray};                                                            \
    struct job j = {.box = {(p)->WidthInBytes, (p)->Height, (p)->Depth}, .stream = stream, .async = async}

static CUresult copy_box_3d(const CUDA_MEMCPY3D *p, CUstream stream, bool async)
{
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    ENDS_3D(p);
    return copy_box(&j, &to, &from);
}

EXPORT CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy)
{
    return copy_box_3d(pCopy, NULL, false);
}

EXPORT CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream)
{
    return copy_box_3d(pCopy, hStream, true);
}

static CUresult copy_box_3d_peer(const CUDA_MEMCPY3D_PEER *p, CUstream stream, bool async)
{
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    ENDS_3D(p);
    j.to_context = p->dstContext;
    j.from_context = p->srcContext;
    return copy_box(&j, &to, &from);
}

EXPORT CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy)
{
    return copy_box_3d_peer(pCopy, NULL, false);
}

EXPORT CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream)
{
    return copy_box_3d_peer(pCopy, hStream, true);
}
