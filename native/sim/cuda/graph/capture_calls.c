/* Driver calls that begin, end and query stream captures. */
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/graph/graph.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"
#include "sim/cuda/stream/stream.h"

/* ---- begin and end ---- */

static CUresult capture_begin(CUstream hStream, struct graph *g, CUstreamCaptureMode mode,
                              const CUgraphNode *depend, size_t count)
{
    STREAM_OR_RETURN(s, hStream);
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED || s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (s->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct session *i = calloc(1, sizeof *i);
    struct capture *c = calloc(1, sizeof *c);
    bool foreign = g != NULL;
    if (!g) g = graph_new();
    if (!i || !c || !g || !capture_follow(c, (struct node *const *)depend, count)) {
        if (g && !foreign) graph_free(g);
        free(i);
        free(c);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *i = (struct session){.graph = g,
                          .origin = s,
                          .thread = pthread_self(),
                          .mode = mode,
                          .foreign = foreign,
                          .id = __atomic_add_fetch(&process.next_id, 1, __ATOMIC_RELAXED)};
    c->session = i;
    capture_session_begin(i);
    s->capture = c;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
    return capture_begin(hStream, NULL, mode, NULL, 0);
}

EXPORT CUresult cuStreamBeginCapture(CUstream hStream)
{
    return capture_begin(hStream, NULL, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, 0);
}

EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
                                            const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                            CUstreamCaptureMode mode)
{
    struct graph *g = object_get(hGraph, KIND_GRAPH);
    (void)dependencyData;
    if (!g || (numDependencies && !dependencies)) return CUDA_ERROR_INVALID_VALUE;
    return capture_begin(hStream, g, mode, dependencies, numDependencies);
}

static void nodes_mark_reachable(struct node *n)
{
    if (n->mark == 2) return;
    n->mark = 2;
    for (size_t i = 0; i < n->depend_count; i++)
        nodes_mark_reachable(n->depend[i]);
}

/*
 * Remove the members' parts from their streams; return true if the beginning stream waits for all their work.
 */
static bool session_close_members(struct session *i)
{
    struct context *c = i->origin->context;
    struct capture *origin = i->origin->capture;
    bool joined = true;
    for (struct node *n = i->graph->first; n; n = n->next)
        n->mark = 0;
    for (size_t k = 0; k < origin->count; k++)
        nodes_mark_reachable(origin->tail[k]);
    pthread_mutex_lock(&c->lock);
    for (struct stream *s = c->streams; s; s = s->next) {
        if (!s->capture || s->capture->session != i) continue;
        for (size_t k = 0; k < s->capture->count; k++)
            joined = joined && s->capture->tail[k]->mark == 2;
        free(s->capture->tail);
        free(s->capture);
        s->capture = NULL;
    }
    pthread_mutex_unlock(&c->lock);
    return joined;
}

EXPORT CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (!phGraph) return CUDA_ERROR_INVALID_VALUE;
    if (!s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    struct session *i = s->capture->session;
    if (i->origin != s) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (i->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(i->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    bool joined = session_close_members(i);
    result = i->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
             : joined   ? CUDA_SUCCESS
                        : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    *phGraph = result == CUDA_SUCCESS ? (CUgraph)i->graph : NULL;
    if (result != CUDA_SUCCESS && !i->foreign) graph_free(i->graph);
    capture_session_end(i);
    return result;
}

/* ---- queries ---- */

static CUstreamCaptureStatus capture_status(const struct stream *s)
{
    if (!s->capture) return CU_STREAM_CAPTURE_STATUS_NONE;
    return s->capture->session->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                        : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

EXPORT CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
    STREAM_OR_RETURN(s, hStream);
    if (!captureStatus) return CUDA_ERROR_INVALID_VALUE;
    *captureStatus = capture_status(s);
    if (capture_is_implicit(s, false)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                          cuuint64_t *id_out, CUgraph *graph_out,
                                          const CUgraphNode **dependencies_out, size_t *numDependencies_out)
{
    STREAM_OR_RETURN(s, hStream);
    if (!captureStatus_out) return CUDA_ERROR_INVALID_VALUE;
    *captureStatus_out = capture_status(s);
    if (!s->capture) return CUDA_SUCCESS;
    if (id_out) *id_out = s->capture->session->id;
    if (graph_out) *graph_out = (CUgraph)s->capture->session->graph;
    if (dependencies_out) *dependencies_out = (const CUgraphNode *)s->capture->tail;
    if (numDependencies_out) *numDependencies_out = s->capture->count;
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

EXPORT CUresult cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode *dependencies,
                                                  size_t numDependencies, unsigned int flags)
{
    STREAM_OR_RETURN(s, hStream);
    if (!s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if ((numDependencies && !dependencies) || flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < numDependencies; i++) {
        const struct node *n = object_get(dependencies[i], KIND_NODE);
        if (!n || n->graph != s->capture->session->graph) return CUDA_ERROR_INVALID_VALUE;
    }
    struct node *const *nodes = (struct node *const *)dependencies;
    bool ok = flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES
                  ? capture_follow(s->capture, nodes, numDependencies)
                  : capture_follow_also(s->capture, nodes, numDependencies);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode *dependencies,
                                                     const CUgraphEdgeData *dependencyData,
                                                     size_t numDependencies, unsigned int flags)
{
    (void)dependencyData;
    return cuStreamUpdateCaptureDependencies(hStream, dependencies, numDependencies, flags);
}
