/* Handlers of asynchronous copies to the program. */
#include "remote/worker/generated.h"
#include "remote/worker/outbox.h"
#include "remote/worker/pending_copies.h"

static CUresult copy_start(struct cb_request *q, CUdeviceptr from, size_t bytes, CUstream stream)
{
    CUstreamCaptureStatus capturing;
    cuuint64_t id;
    CUgraph graph = NULL;
    uint8_t *data = cb_pending_copy_buffer(bytes);
    if (!data) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CB_CALL(cuStreamIsCapturing)(stream, &capturing);
    if (result == CUDA_SUCCESS && capturing == CU_STREAM_CAPTURE_STATUS_ACTIVE)
        result = CB_CALL(cuStreamGetCaptureInfo_v2)(stream, &capturing, &id, &graph, NULL, NULL);
    if (result == CUDA_SUCCESS) result = CB_CALL(cuMemcpyDtoHAsync_v2)(data, from, bytes, stream);
    if (result == CUDA_SUCCESS)
        result = graph ? cb_pending_copy_keep(&q->frame, data, graph)
                       : cb_pending_copy_add(&q->frame, data, stream);
    if (result != CUDA_SUCCESS) cb_pending_copy_free(data);
    return result;
}

CUresult cb_on_FETCH(struct cb_request *q)
{
    CUdeviceptr from = cb_take_word(q);
    size_t bytes = cb_take_word(q);
    CUstream stream = cb_object_of(q, CB_KIND_STREAM, cb_take_word(q));
    if (!cb_taken(q)) return CB_MALFORMED;
    CUresult result = q->failed == CUDA_SUCCESS ? copy_start(q, from, bytes, stream) : q->failed;
    uint64_t nothing = 0;
    if (result != CUDA_SUCCESS) cb_outbox_notice(&q->frame, CB_DATA, 0, result, &nothing, 1, NULL, 0);
    return result;
}
