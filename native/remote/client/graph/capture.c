/*
 * Stream capture. The worker's captures are relaxed, because its threads are not the program's: what a capture
 * forbids, and to which thread, is decided here.
 */
#include "remote/client/graph/capture.h"

#include "remote/client/api/object_table.h"
#include "remote/client/connection/session.h"
#include "remote/client/context/context_stack.h"
#include "remote/wire/graph.h"
#include "remote_wrapped.h"

struct capture {
    CUstream stream;
    uint16_t thread;
    CUstreamCaptureMode mode;
    bool invalid;
    struct capture *next;
};

static struct {
    pthread_mutex_t lock;
    struct capture *first;
    unsigned int count;
} captures = {.lock = PTHREAD_MUTEX_INITIALIZER};
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult cb_capture_forbids(void)
{
    if (!__atomic_load_n(&captures.count, __ATOMIC_ACQUIRE) || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    bool forbidden = false;
    uint16_t self = cb_thread_number();
    pthread_mutex_lock(&captures.lock);
    for (struct capture *c = captures.first; c; c = c->next) {
        bool mine = c->thread == self && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        if (!mine &&
            (c->mode != CU_STREAM_CAPTURE_MODE_GLOBAL || thread_mode != CU_STREAM_CAPTURE_MODE_GLOBAL))
            continue;
        c->invalid = true;
        forbidden = true;
    }
    pthread_mutex_unlock(&captures.lock);
    return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* Stream 0 in a call of the per-thread flavour is a separate stream for each thread. */
static CUstream capture_stream(CUstream stream)
{
    return !stream && cb_per_thread ? CU_STREAM_PER_THREAD : stream;
}

bool cb_captures_open(void)
{
    return __atomic_load_n(&captures.count, __ATOMIC_ACQUIRE) != 0;
}

static void capture_add(CUstream stream, CUstreamCaptureMode mode)
{
    struct capture *c = malloc(sizeof *c);
    if (!c) return;
    *c = (struct capture){.stream = capture_stream(stream), .thread = cb_thread_number(), .mode = mode};
    pthread_mutex_lock(&captures.lock);
    c->next = captures.first;
    captures.first = c;
    __atomic_fetch_add(&captures.count, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&captures.lock);
}

static struct capture *capture_find(CUstream stream, bool take)
{
    pthread_mutex_lock(&captures.lock);
    struct capture **at = &captures.first;
    while (*at && (*at)->stream != capture_stream(stream))
        at = &(*at)->next;
    struct capture *c = *at;
    if (c && take) {
        *at = c->next;
        __atomic_fetch_sub(&captures.count, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&captures.lock);
    return c;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_ILLEGAL_STATE;
    CB_OK(cb_remote_cuStreamBeginCapture_v2(hStream, CU_STREAM_CAPTURE_MODE_RELAXED));
    capture_add(hStream, mode);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture(CUstream hStream)
{
    return cuStreamBeginCapture_v2(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

EXPORT CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
    struct capture *c = capture_find(hStream, false);
    if (!phGraph) return CUDA_ERROR_INVALID_VALUE;
    if (c && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != cb_thread_number())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    CUresult result = cb_remote_cuStreamEndCapture(hStream, phGraph);
    c = capture_find(hStream, true);
    bool invalid = c && c->invalid;
    free(c);
    if (result != CUDA_SUCCESS) *phGraph = NULL;
    if (result != CUDA_SUCCESS || !invalid) return result;
    cuGraphDestroy(*phGraph);
    *phGraph = NULL;
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

static CUstreamCaptureStatus capture_status_here(CUstream stream, CUstreamCaptureStatus status)
{
    const struct capture *c = status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? capture_find(stream, false) : NULL;
    return c && c->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : status;
}

/* Captures begin in this process: if none is under way, the worker is not asked. */
static bool stream_is_not_captured(CUstream stream)
{
    return cb_session_ready() && cb_context_number() && !cb_captures_open() &&
           ((uintptr_t)stream <= 2 || cb_object_alive((uintptr_t)stream, CB_KIND_STREAM));
}

EXPORT CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
    if (!captureStatus) return CUDA_ERROR_INVALID_VALUE;
    if (stream_is_not_captured(hStream)) {
        *captureStatus = CU_STREAM_CAPTURE_STATUS_NONE;
        return CUDA_SUCCESS;
    }
    CB_OK(cb_remote_cuStreamIsCapturing(hStream, captureStatus));
    *captureStatus = capture_status_here(hStream, *captureStatus);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                          cuuint64_t *id_out, CUgraph *graph_out,
                                          const CUgraphNode **dependencies_out, size_t *numDependencies_out)
{
    static __thread CUgraphNode nodes[CB_TAIL_MAX];
    struct cb_call call;
    if (!captureStatus_out) return CUDA_ERROR_INVALID_VALUE;
    if (stream_is_not_captured(hStream)) {
        *captureStatus_out = CU_STREAM_CAPTURE_STATUS_NONE;
        return CUDA_SUCCESS;
    }
    CB_OK(cb_call_begin(&call, CB_OP_CAPTURE_INFO, CB_NOT_IN_DEAD));
    cb_put_handle(&call, CB_KIND_STREAM, (uintptr_t)hStream);
    CB_OK(cb_call_ask(&call));
    *captureStatus_out = capture_status_here(hStream, (CUstreamCaptureStatus)cb_take_word(&call));
    uint64_t id = cb_take_word(&call), graph = cb_take_word(&call), count = cb_take_word(&call);
    if (*captureStatus_out == CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_SUCCESS;
    for (uint64_t i = 0; i < count && i < CB_TAIL_MAX; i++)
        nodes[i] = (CUgraphNode)(uintptr_t)cb_take_word(&call);
    cb_call_end(&call);
    if (id_out) *id_out = id;
    if (graph_out) *graph_out = (CUgraph)(uintptr_t)graph;
    if (dependencies_out) *dependencies_out = nodes;
    if (numDependencies_out) *numDependencies_out = count < CB_TAIL_MAX ? count : CB_TAIL_MAX;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                          cuuint64_t *id_out, CUgraph *graph_out,
                                          const CUgraphNode **dependencies_out,
                                          const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out)
{
    if (edgeData_out) *edgeData_out = NULL;
    return cuStreamGetCaptureInfo_v2(hStream, captureStatus_out, id_out, graph_out, dependencies_out,
                                     numDependencies_out);
}

EXPORT CUresult cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                       cuuint64_t *id_out)
{
    return cuStreamGetCaptureInfo_v2(hStream, captureStatus_out, id_out, NULL, NULL, NULL);
}

bool cb_is_captured(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!__atomic_load_n(&captures.count, __ATOMIC_ACQUIRE)) return false;
    return cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}
