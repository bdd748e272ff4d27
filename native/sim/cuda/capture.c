/*
 * Stream capture: what is issued to a capturing stream becomes nodes of a graph.
 *
 * A session is one capture; each stream that takes part has its own list of nodes that its next node will
 * follow. A stream joins by waiting for an event that was recorded in a member, and must be joined back into
 * the stream that began before the capture ends.
 */
#include "sim/cuda/graph.h"

struct session {
    struct graph *graph;
    struct stream *origin;
    pthread_t thread;
    CUstreamCaptureMode mode;
    bool invalid;
    bool foreign; /* the graph was the caller's before */
    uint64_t id;
    struct session *next;
};

struct capture { /* a stream's part */
    struct session *session;
    struct node **tail;
    size_t count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct session *sessions;
static uint32_t active; /* sessions under way: the cheap question */
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult capture_forbids(void)
{
    if (!__atomic_load_n(&active, __ATOMIC_ACQUIRE) || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    bool forbidden = false;
    pthread_mutex_lock(&lock);
    for (struct session *s = sessions; s; s = s->next) {
        bool mine = pthread_equal(s->thread, pthread_self());
        bool counts =
            (mine && s->mode != CU_STREAM_CAPTURE_MODE_RELAXED) ||
            (s->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
        if (!counts) continue;
        s->invalid = true;
        forbidden = true;
    }
    pthread_mutex_unlock(&lock);
    return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult capture_refuse(struct stream *s)
{
    s->capture->session->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

static bool set_tail(struct capture *c, struct node *const *nodes, size_t count)
{
    struct node **copy = malloc((count + 1) * sizeof *copy);
    if (!copy) return false;
    if (count) memcpy(copy, nodes, count * sizeof *copy);
    free(c->tail);
    c->tail = copy;
    c->count = count;
    return true;
}

static bool add_tail(struct capture *c, struct node *const *nodes, size_t count)
{
    struct node **more = realloc(c->tail, (c->count + count + 1) * sizeof *more);
    if (!more) return false;
    c->tail = more;
    for (size_t i = 0; i < count; i++) {
        bool there = false;
        for (size_t k = 0; k < c->count; k++)
            there = there || more[k] == nodes[i];
        if (!there) more[c->count++] = nodes[i];
    }
    return true;
}

static struct node *append(struct stream *s, enum node_kind kind)
{
    struct capture *c = s->capture;
    struct node *n = node_new(c->session->graph, kind, c->tail, c->count);
    if (n && !set_tail(c, &n, 1)) {
        node_free(n);
        n = NULL;
    }
    return n;
}

/* Work in the legacy stream would have to wait for a capturing stream. */
static bool implicit(struct stream *s, bool invalidates)
{
    if (!s->legacy || !__atomic_load_n(&active, __ATOMIC_ACQUIRE)) return false;
    bool found = false;
    pthread_mutex_lock(&s->context->lock);
    for (struct stream *o = s->context->streams; o; o = o->next) {
        if (!o->capture || (o->flags & CU_STREAM_NON_BLOCKING)) continue;
        if (o->capture->session->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
        found = true;
        if (invalidates) o->capture->session->invalid = true;
    }
    pthread_mutex_unlock(&s->context->lock);
    return found;
}

bool capture_work(struct stream *s, enum node_kind kind, const struct work *w, const void *params,
                  size_t bytes, CUresult *result)
{
    if (!s->capture) {
        if (!implicit(s, true)) return false;
        *result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        return true;
    }
    if (s->capture->session->invalid) {
        *result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return true;
    }
    struct node *n = append(s, kind);
    *result = n && node_set_work(n, w) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (n && kind == NODE_KERNEL) memcpy(&n->kernel, params, bytes);
    if (n && kind == NODE_HOST) memcpy(&n->host, params, bytes);
    return true;
}

bool capture_record(struct stream *s, struct event *e, CUresult *result)
{
    if (!s->capture) {
        free(e->capture_nodes);
        e->capture_nodes = NULL;
        e->capture = NULL;
        return false;
    }
    struct node **copy = malloc((s->capture->count + 1) * sizeof *copy);
    *result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!copy) return true;
    if (s->capture->count) memcpy(copy, s->capture->tail, s->capture->count * sizeof *copy);
    free(e->capture_nodes);
    e->capture_nodes = copy;
    e->capture_count = s->capture->count;
    e->capture = s->capture;
    e->capture_id = s->capture->session->id;
    *result = CUDA_SUCCESS;
    return true;
}

/* The session in which an event was recorded, while it is still under way. */
static struct session *session_of(const struct event *e)
{
    struct session *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct session *i = sessions; e->capture && i && !found; i = i->next) {
        if (i->id == e->capture_id) found = i;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool capture_wait(struct stream *s, struct event *e, CUresult *result)
{
    if (!s->capture && !e->capture) return false;
    struct session *session = session_of(e);
    *result = CUDA_SUCCESS;
    if (!session) {
        if (!s->capture) return false;
        /* An event of outside: the graph would depend on what is not in it. */
        *result = e->state == EVENT_NEVER ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        if (*result != CUDA_SUCCESS) s->capture->session->invalid = true;
        return true;
    }
    if (s->legacy) {
        *result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        return true;
    }
    if (!s->capture) {
        struct capture *c = calloc(1, sizeof *c);
        if (!c || !set_tail(c, e->capture_nodes, e->capture_count)) {
            free(c);
            *result = CUDA_ERROR_OUT_OF_MEMORY;
            return true;
        }
        c->session = session;
        s->capture = c;
        return true;
    }
    if (s->capture->session != session)
        *result = CUDA_ERROR_STREAM_CAPTURE_MERGE;
    else if (!add_tail(s->capture, e->capture_nodes, e->capture_count))
        *result = CUDA_ERROR_OUT_OF_MEMORY;
    return true;
}

CUresult capture_graph(struct stream *s, struct graph *g)
{
    struct graph *copy = graph_clone(g);
    struct node *n = copy ? append(s, NODE_GRAPH) : NULL;
    if (!n) {
        if (copy) graph_free(copy);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    copy->owned = true;
    n->child = copy;
    return CUDA_SUCCESS;
}

CUresult capture_alloc(struct stream *s, struct pool *p, size_t bytes, CUdeviceptr *out)
{
    struct graph_memory *m;
    CUresult result = graph_memory_new(p->device, bytes, &m);
    if (result != CUDA_SUCCESS) return result;
    struct node *n = append(s, NODE_ALLOC);
    if (!n) {
        graph_memory_release(m);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    n->memory = m;
    *out = m->range->base;
    return CUDA_SUCCESS;
}

CUresult capture_free(struct stream *s, CUdeviceptr address)
{
    struct graph_memory *m = graph_memory_at(address);
    if (!m) return CUDA_ERROR_INVALID_VALUE;
    struct node *n = append(s, NODE_FREE);
    if (!n) return CUDA_ERROR_OUT_OF_MEMORY;
    __atomic_fetch_add(&m->references, 1, __ATOMIC_RELAXED);
    n->memory = m;
    return CUDA_SUCCESS;
}

/* ---- beginning and ending ---- */

static CUresult begin(CUstream hStream, struct graph *g, CUstreamCaptureMode mode, const CUgraphNode *depend,
                      size_t count)
{
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED || s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (s->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct session *i = calloc(1, sizeof *i);
    struct capture *c = calloc(1, sizeof *c);
    bool foreign = g != NULL;
    if (!g) g = graph_new();
    if (!i || !c || !g || !set_tail(c, (struct node *const *)depend, count)) {
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
    pthread_mutex_lock(&lock);
    i->next = sessions;
    sessions = i;
    __atomic_fetch_add(&active, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    s->capture = c;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
    return begin(hStream, NULL, mode, NULL, 0);
}

EXPORT CUresult cuStreamBeginCapture(CUstream hStream)
{
    return begin(hStream, NULL, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, 0);
}

EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
                                            const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                            CUstreamCaptureMode mode)
{
    struct graph *g = object_get(hGraph, KIND_GRAPH);
    (void)dependencyData;
    if (!g || (numDependencies && !dependencies)) return CUDA_ERROR_INVALID_VALUE;
    return begin(hStream, g, mode, dependencies, numDependencies);
}

static void reach(struct node *n)
{
    if (n->mark == 2) return;
    n->mark = 2;
    for (size_t i = 0; i < n->depend_count; i++)
        reach(n->depend[i]);
}

/* Whether all that the members did is waited for by the stream that began. Member parts are taken off the
 * streams. */
static bool close_members(struct session *i)
{
    struct context *c = i->origin->context;
    struct capture *origin = i->origin->capture;
    bool joined = true;
    for (struct node *n = i->graph->first; n; n = n->next)
        n->mark = 0;
    for (size_t k = 0; k < origin->count; k++)
        reach(origin->tail[k]);
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

static void forget(struct session *i)
{
    pthread_mutex_lock(&lock);
    for (struct session **p = &sessions; *p; p = &(*p)->next) {
        if (*p != i) continue;
        *p = i->next;
        break;
    }
    __atomic_fetch_sub(&active, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    free(i);
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
    bool joined = close_members(i);
    result = i->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
             : joined   ? CUDA_SUCCESS
                        : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    *phGraph = result == CUDA_SUCCESS ? (CUgraph)i->graph : NULL;
    if (result != CUDA_SUCCESS && !i->foreign) graph_free(i->graph);
    forget(i);
    return result;
}

void capture_abandon(struct stream *s)
{
    struct session *i = s->capture->session;
    if (i->origin != s) {
        i->invalid = true;
        free(s->capture->tail);
        free(s->capture);
        s->capture = NULL;
        return;
    }
    for (struct stream *o = s->context->streams; o; o = o->next) {
        if (!o->capture || o->capture->session != i) continue;
        free(o->capture->tail);
        free(o->capture);
        o->capture = NULL;
    }
    if (!i->foreign) graph_free(i->graph);
    forget(i);
}

/* ---- questions ---- */

static CUstreamCaptureStatus status(const struct stream *s)
{
    if (!s->capture) return CU_STREAM_CAPTURE_STATUS_NONE;
    return s->capture->session->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                        : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

EXPORT CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (!captureStatus) return CUDA_ERROR_INVALID_VALUE;
    *captureStatus = status(s);
    if (implicit(s, false)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                          cuuint64_t *id_out, CUgraph *graph_out,
                                          const CUgraphNode **dependencies_out, size_t *numDependencies_out)
{
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (!captureStatus_out) return CUDA_ERROR_INVALID_VALUE;
    *captureStatus_out = status(s);
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
    struct stream *s;
    CUresult result = stream_get(hStream, &s);
    if (result != CUDA_SUCCESS) return result;
    if (!s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if ((numDependencies && !dependencies) || flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < numDependencies; i++) {
        const struct node *n = object_get(dependencies[i], KIND_NODE);
        if (!n || n->graph != s->capture->session->graph) return CUDA_ERROR_INVALID_VALUE;
    }
    struct node *const *nodes = (struct node *const *)dependencies;
    bool ok = flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES ? set_tail(s->capture, nodes, numDependencies)
                                                          : add_tail(s->capture, nodes, numDependencies);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode *dependencies,
                                                     const CUgraphEdgeData *dependencyData,
                                                     size_t numDependencies, unsigned int flags)
{
    (void)dependencyData;
    return cuStreamUpdateCaptureDependencies(hStream, dependencies, numDependencies, flags);
}
