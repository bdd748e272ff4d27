/* Copies of rows and slices. Between servers they pass through this process, some rows at a time. */
#include "remote/span/route.h"

#define PART_BYTES (4u << 20)

static struct span_session *end_session(CUmemorytype type, CUdeviceptr device, CUarray array)
{
    if (type == CU_MEMORYTYPE_HOST) return NULL;
    return type == CU_MEMORYTYPE_ARRAY ? span_of_handle((uintptr_t)array) : span_of_address(device);
}

static struct span_session *destination_session(const CUDA_MEMCPY3D *p)
{
    return end_session(p->dstMemoryType, p->dstDevice, p->dstArray);
}

static struct span_session *source_session(const CUDA_MEMCPY3D *p)
{
    return end_session(p->srcMemoryType, p->srcDevice, p->srcArray);
}

/* The session that can do the whole copy; NULL: none. */
static struct span_session *single_session(const CUDA_MEMCPY3D *p)
{
    struct span_session *to = destination_session(p), *from = source_session(p);
    if (!to && !from) return span_current();
    return !to || !from || to == from ? (to ? to : from) : NULL;
}

static uint64_t device_address_of(const CUDA_MEMCPY3D *p)
{
    bool to = destination_session(p) != NULL;
    CUmemorytype type = to ? p->dstMemoryType : p->srcMemoryType;
    return type == CU_MEMORYTYPE_ARRAY ? 0 : to ? p->dstDevice : p->srcDevice;
}

static CUresult copy_in_session(const CUDA_MEMCPY3D *p)
{
    struct span_visit v;
    CB_OK(span_enter(&v, single_session(p), device_address_of(p)));
    CUresult result = SPAN_CALL(v.session, cuMemcpy3D_v2)(p);
    span_leave(&v);
    return result;
}

/* Copy some rows of one slice, at an offset from the copy's corner. */
static CUresult rows_copy_across(const CUDA_MEMCPY3D *p, size_t y, size_t z, size_t height, void *part)
{
    CUDA_MEMCPY3D out = *p, in = *p;
    out.srcY += y;
    out.srcZ += z;
    in.dstY += y;
    in.dstZ += z;
    out.Height = in.Height = height;
    out.Depth = in.Depth = 1;
    out.dstMemoryType = in.srcMemoryType = CU_MEMORYTYPE_HOST;
    in.srcHost = out.dstHost = part;
    out.dstXInBytes = out.dstY = out.dstZ = in.srcXInBytes = in.srcY = in.srcZ = 0;
    out.dstPitch = in.srcPitch = p->WidthInBytes;
    out.dstHeight = in.srcHeight = height;
    CB_OK(copy_in_session(&out));
    return copy_in_session(&in);
}

/* Wait until the data has arrived: streams that do not wait for others must find it. */
static CUresult wait_until_arrived(struct span_session *s, uint64_t address)
{
    struct span_visit v;
    CB_OK(span_enter(&v, s, address));
    CUresult result = SPAN_CALL(v.session, cuStreamSynchronize)(CU_STREAM_LEGACY);
    span_leave(&v);
    return result;
}

static CUresult copy_across(const CUDA_MEMCPY3D *p)
{
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    size_t width = p->WidthInBytes, at_once = width && width < PART_BYTES ? PART_BYTES / width : 1;
    if (at_once > p->Height) at_once = p->Height;
    if (!width || !p->Height || !p->Depth) return CUDA_SUCCESS;
    void *part = malloc(width * at_once);
    CUresult result = part ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t z = 0; z < p->Depth; z++) {
        for (size_t y = 0; y < p->Height && result == CUDA_SUCCESS; y += at_once) {
            size_t height = p->Height - y < at_once ? p->Height - y : at_once;
            result = rows_copy_across(p, y, z, height, part);
        }
    }
    free(part);
    return result == CUDA_SUCCESS ? wait_until_arrived(destination_session(p), device_address_of(p)) : result;
}

/* Find the session of the stream if it can do the copy; else wait until the stream has reached it. */
static CUresult stream_wait_turn(const CUDA_MEMCPY3D *p, CUstream stream, struct span_session **out)
{
    struct span_session *s = (uintptr_t)stream > 2 ? span_of_handle((uintptr_t)stream) : span_current();
    if (!span_ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    *out = single_session(p) == s ? s : NULL;
    return *out ? CUDA_SUCCESS : cuStreamSynchronize(stream);
}

static CUresult copy_and_wait(const CUDA_MEMCPY3D *p)
{
    if (!single_session(p)) return copy_across(p);
    CB_OK(copy_in_session(p));
    return wait_until_arrived(single_session(p), device_address_of(p));
}

/* ---- hooks ---- */

EXPORT CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy)
{
    if (!pCopy) return CUDA_ERROR_INVALID_VALUE;
    return !span_ready || single_session(pCopy) ? copy_in_session(pCopy) : copy_across(pCopy);
}

EXPORT CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream)
{
    struct span_session *s;
    if (!pCopy) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(stream_wait_turn(pCopy, hStream, &s));
    return s ? SPAN_CALL(s, cuMemcpy3DAsync_v2)(pCopy, hStream) : copy_and_wait(pCopy);
}

static CUDA_MEMCPY3D box_of_2d(const CUDA_MEMCPY2D *p)
{
    return (CUDA_MEMCPY3D){.srcXInBytes = p->srcXInBytes,
                           .srcY = p->srcY,
                           .srcMemoryType = p->srcMemoryType,
                           .srcHost = p->srcHost,
                           .srcDevice = p->srcDevice,
                           .srcArray = p->srcArray,
                           .srcPitch = p->srcPitch,
                           .dstXInBytes = p->dstXInBytes,
                           .dstY = p->dstY,
                           .dstMemoryType = p->dstMemoryType,
                           .dstHost = p->dstHost,
                           .dstDevice = p->dstDevice,
                           .dstArray = p->dstArray,
                           .dstPitch = p->dstPitch,
                           .WidthInBytes = p->WidthInBytes,
                           .Height = p->Height,
                           .Depth = 1};
}

static CUresult copy_2d(const CUDA_MEMCPY2D *p, bool unaligned)
{
    struct span_visit v;
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D box = box_of_2d(p);
    if (span_ready && !single_session(&box)) return copy_across(&box);
    CB_OK(span_enter(&v, single_session(&box), device_address_of(&box)));
    CUresult result =
        unaligned ? SPAN_CALL(v.session, cuMemcpy2DUnaligned_v2)(p) : SPAN_CALL(v.session, cuMemcpy2D_v2)(p);
    span_leave(&v);
    return result;
}

EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_2d(pCopy, false);
}

EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_2d(pCopy, true);
}

EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream)
{
    struct span_session *s;
    if (!pCopy) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D box = box_of_2d(pCopy);
    CB_OK(stream_wait_turn(&box, hStream, &s));
    return s ? SPAN_CALL(s, cuMemcpy2DAsync_v2)(pCopy, hStream) : copy_and_wait(&box);
}

static CUDA_MEMCPY3D box_of_peer(const CUDA_MEMCPY3D_PEER *p)
{
    return (CUDA_MEMCPY3D){.srcXInBytes = p->srcXInBytes,
                           .srcY = p->srcY,
                           .srcZ = p->srcZ,
                           .srcLOD = p->srcLOD,
                           .srcMemoryType = p->srcMemoryType,
                           .srcHost = p->srcHost,
                           .srcDevice = p->srcDevice,
                           .srcArray = p->srcArray,
                           .srcPitch = p->srcPitch,
                           .srcHeight = p->srcHeight,
                           .dstXInBytes = p->dstXInBytes,
                           .dstY = p->dstY,
                           .dstZ = p->dstZ,
                           .dstLOD = p->dstLOD,
                           .dstMemoryType = p->dstMemoryType,
                           .dstHost = p->dstHost,
                           .dstDevice = p->dstDevice,
                           .dstArray = p->dstArray,
                           .dstPitch = p->dstPitch,
                           .dstHeight = p->dstHeight,
                           .WidthInBytes = p->WidthInBytes,
                           .Height = p->Height,
                           .Depth = p->Depth};
}

EXPORT CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy)
{
    struct span_visit v;
    if (!pCopy) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D box = box_of_peer(pCopy);
    if (span_ready && !single_session(&box)) return copy_across(&box);
    CB_OK(span_enter(&v, single_session(&box), device_address_of(&box)));
    CUresult result = SPAN_CALL(v.session, cuMemcpy3DPeer)(pCopy);
    span_leave(&v);
    return result;
}

EXPORT CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream)
{
    struct span_session *s;
    if (!pCopy) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D box = box_of_peer(pCopy);
    CB_OK(stream_wait_turn(&box, hStream, &s));
    return s ? SPAN_CALL(s, cuMemcpy3DPeerAsync)(pCopy, hStream) : copy_and_wait(&box);
}
