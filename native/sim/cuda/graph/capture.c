/*
 * Stream capture: work issued to a capturing stream becomes nodes of a graph.
 *
 * A session is one capture; each stream that takes part has its own list of nodes that its next node will
 * follow. A stream joins by waiting for an event that was recorded in a member, and must be joined back into
 * the stream that began before the capture ends.
 */
#include "sim/cuda/graph/capture.h"

#include "sim/cuda/stream/event.h"

static pthread_mutex_t sessions_lock = PTHREAD_MUTEX_INITIALIZER;
static struct session *sessions;
static uint32_t session_count; /* sessions under way: tested before the list is searched */
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult capture_forbids(void)
{
    if (!__atomic_load_n(&session_count, __ATOMIC_ACQUIRE) || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    bool forbidden = false;
    pthread_mutex_lock(&sessions_lock);
    for (struct session *s = sessions; s; s = s->next) {
        bool mine = pthread_equal(s->thread, pthread_self());
        bool counts =
            (mine && s->mode != CU_STREAM_CAPTURE_MODE_RELAXED) ||
            (s->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
        if (!counts) continue;
        s->invalid = true;
        forbidden = true;
    }
    pthread_mutex_unlock(&sessions_lock);
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

bool capture_follow(struct capture *c, struct node *const *nodes, size_t count)
{
    struct node **copy = malloc((count + 1) * sizeof *copy);
    if (!copy) return false;
    if (count) memcpy(copy, nodes, count * sizeof *copy);
    free(c->tail);
    c->tail = copy;
    c->count = count;
    return true;
}

bool capture_follow_also(struct capture *c, struct node *const *nodes, size_t count)
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

/* Return true if work in the legacy stream would have to wait for a capturing stream. */
bool capture_is_implicit(struct stream *s, bool invalidates)
{
    if (!s->legacy || !__atomic_load_n(&session_count, __ATOMIC_ACQUIRE)) return false;
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

/* The session in which an event was recorded, while it is under way; else NULL. */
static struct session *session_of(const struct event *e)
{
    struct session *found = NULL;
    pthread_mutex_lock(&sessions_lock);
    for (struct session *i = sessions; e->capture && i && !found; i = i->next) {
        if (i->id == e->capture_id) found = i;
    }
    pthread_mutex_unlock(&sessions_lock);
    return found;
}

bool capture_wait(struct stream *s, struct event *e, CUresult *result)
{
    if (!s->capture && !e->capture) return false;
    struct session *session = session_of(e);
    *result = CUDA_SUCCESS;
    if (!session) {
        if (!s->capture) return false;
        /* An event recorded outside the capture: the graph would depend on work that is not part of it. */
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
        if (!c || !capture_follow(c, e->capture_nodes, e->capture_count)) {
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
    else if (!capture_follow_also(s->capture, e->capture_nodes, e->capture_count))
        *result = CUDA_ERROR_OUT_OF_MEMORY;
    return true;
}

void capture_session_begin(struct session *i)
{
    pthread_mutex_lock(&sessions_lock);
    i->next = sessions;
    sessions = i;
    __atomic_fetch_add(&session_count, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&sessions_lock);
}

void capture_session_end(struct session *i)
{
    pthread_mutex_lock(&sessions_lock);
    for (struct session **p = &sessions; *p; p = &(*p)->next) {
        if (*p != i) continue;
        *p = i->next;
        break;
    }
    __atomic_fetch_sub(&session_count, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&sessions_lock);
    free(i);
}
