/*
 * Host functions of the program. The worker puts a function of its own in their place: it sends a notice to the
 * program and waits until the program's function has run. The notice is sent by a thread, because such a
 * function must not call the driver.
 */
#include "remote/worker/generated.h"
#include "remote/worker/outbox.h"
#include "remote/worker/watch.h"

#include <pthread.h>

struct function {
    struct cb_frame frame; /* of the command that put it there */
    bool kept;             /* a graph may run it repeatedly */
};

struct run {
    const struct function *function;
    CUresult result;
    uint64_t number;
    bool told, done;
    struct run *next;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct run *first;
    uint64_t runs;
    bool started;
} relay = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static struct run *run_oldest_unsent(void)
{
    struct run *oldest = NULL;
    for (struct run *r = relay.first; r; r = r->next) {
        if (!r->told) oldest = r; /* the newest is the first */
    }
    return oldest;
}

static void *notices_send(void *nothing)
{
    pthread_mutex_lock(&relay.lock);
    for (struct run *r;;) {
        while (!(r = run_oldest_unsent()))
            pthread_cond_wait(&relay.changed, &relay.lock);
        r->told = true;
        struct function f = *r->function;
        CUresult result = r->result;
        uint64_t number = r->number;
        pthread_mutex_unlock(&relay.lock);
        cb_watch_report(); /* data copied before it must have been sent when it runs */
        cb_outbox_notice(&f.frame, CB_HOST, f.kept ? CB_FRAME_KEPT : 0, result, &number, 1, NULL, 0);
        cb_outbox_flush();
        pthread_mutex_lock(&relay.lock);
    }
    return nothing;
}

static void run_and_wait(struct function *f, CUresult result)
{
    struct run r = {.function = f, .result = result};
    pthread_mutex_lock(&relay.lock);
    r.number = ++relay.runs;
    r.next = relay.first;
    relay.first = &r;
    pthread_cond_broadcast(&relay.changed);
    while (!r.done)
        pthread_cond_wait(&relay.changed, &relay.lock);
    struct run **at = &relay.first;
    while (*at != &r)
        at = &(*at)->next;
    *at = r.next;
    pthread_mutex_unlock(&relay.lock);
    if (!f->kept) free(f);
}

static void CUDA_CB host_function_run(void *data)
{
    run_and_wait(data, CUDA_SUCCESS);
}

static void CUDA_CB stream_callback_run(CUstream stream, CUresult status, void *data)
{
    (void)stream;
    run_and_wait(data, status);
}

static struct function *function_make(const struct cb_request *q, bool kept)
{
    struct function *f = malloc(sizeof *f);
    if (f) *f = (struct function){q->frame, kept};
    pthread_t thread;
    if (!relay.started) relay.started = pthread_create(&thread, NULL, notices_send, NULL) == 0;
    return relay.started ? f : NULL;
}

CUresult cb_on_HOST_CALL(struct cb_request *q)
{
    CUstream stream = cb_object_of(q, CB_KIND_STREAM, cb_take_word(q));
    bool callback = cb_take_word(q) != 0;
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!cb_taken(q)) return CB_MALFORMED;
    CUresult result = q->failed;
    if (result == CUDA_SUCCESS) result = CB_CALL(cuStreamIsCapturing)(stream, &capturing);
    if (result != CUDA_SUCCESS) return result;
    struct function *f = function_make(q, capturing == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    if (!f) return CUDA_ERROR_OUT_OF_MEMORY;
    if (callback)
        result = CB_CALL(cuStreamAddCallback)(stream, stream_callback_run, f, 0);
    else
        result = CB_CALL(cuLaunchHostFunc)(stream, host_function_run, f);
    if (result != CUDA_SUCCESS) free(f);
    return result;
}

CUresult cb_on_HOST_DONE(struct cb_request *q)
{
    uint64_t number = cb_take_word(q);
    if (!cb_taken(q)) return CB_MALFORMED;
    bool known = false;
    pthread_mutex_lock(&relay.lock);
    for (struct run *r = relay.first; r; r = r->next) {
        if (r->number == number && r->told) known = r->done = true;
    }
    pthread_cond_broadcast(&relay.changed);
    pthread_mutex_unlock(&relay.lock);
    return known ? CUDA_SUCCESS : CB_MALFORMED;
}

/* ---- nodes ---- */

static CUresult with_function(struct cb_request *q,
                              CUresult (*give)(const CUDA_HOST_NODE_PARAMS *p, void *with), void *with)
{
    struct function *f = function_make(q, true);
    if (!f) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = give(&(CUDA_HOST_NODE_PARAMS){.fn = host_function_run, .userData = f}, with);
    if (result != CUDA_SUCCESS) free(f);
    return result;
}

struct place {
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node, *dependencies;
    size_t count;
};

static CUresult host_node_add(const CUDA_HOST_NODE_PARAMS *p, void *with)
{
    struct place *w = with;
    return CB_CALL(cuGraphAddHostNode)(&w->node, w->graph, w->dependencies, w->count, p);
}

static CUresult host_node_set(const CUDA_HOST_NODE_PARAMS *p, void *with)
{
    const struct place *w = with;
    if (w->exec) return CB_CALL(cuGraphExecHostNodeSetParams)(w->exec, w->node, p);
    return CB_CALL(cuGraphHostNodeSetParams)(w->node, p);
}

CUresult cb_on_HOST_NODE(struct cb_request *q)
{
    struct place w = {.graph = cb_object_of(q, CB_KIND_GRAPH, cb_take_word(q)), .count = cb_take_word(q)};
    w.dependencies = cb_scratch(q, w.count, sizeof(CUgraphNode));
    for (size_t i = 0; i < w.count && !q->bad; i++)
        w.dependencies[i] = cb_object_of(q, CB_KIND_NODE, cb_take_word(q));
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    CUresult result = with_function(q, host_node_add, &w);
    if (result == CUDA_SUCCESS) cb_give_word(q, cb_object_name(q, CB_KIND_NODE, w.node));
    return result;
}

CUresult cb_on_HOST_NODE_SET(struct cb_request *q)
{
    struct place w = {.node = cb_object_of(q, CB_KIND_NODE, cb_take_word(q))};
    if (!cb_taken(q)) return CB_MALFORMED;
    return q->failed == CUDA_SUCCESS ? with_function(q, host_node_set, &w) : q->failed;
}

CUresult cb_on_HOST_EXEC_SET(struct cb_request *q)
{
    struct place w = {.exec = cb_object_of(q, CB_KIND_EXEC, cb_take_word(q))};
    w.node = cb_object_of(q, CB_KIND_NODE, cb_take_word(q));
    if (!cb_taken(q)) return CB_MALFORMED;
    return q->failed == CUDA_SUCCESS ? with_function(q, host_node_set, &w) : q->failed;
}

CUresult cb_on_HOST_NODE_GET(struct cb_request *q)
{
    CUgraphNode node = cb_object_of(q, CB_KIND_NODE, cb_take_word(q));
    CUDA_HOST_NODE_PARAMS p = {0};
    if (!cb_taken(q)) return CB_MALFORMED;
    if (q->failed != CUDA_SUCCESS) return q->failed;
    CUresult result = CB_CALL(cuGraphHostNodeGetParams)(node, &p);
    if (result == CUDA_SUCCESS) cb_give_word(q, ((const struct function *)p.userData)->frame.seq);
    return result;
}

/* ---- user objects ---- */

static void CUDA_CB user_object_destroyed(void *number)
{
    uint64_t word = (uintptr_t)number;
    cb_outbox_notice(&(struct cb_frame){0}, CB_DESTROY, 0, CUDA_SUCCESS, &word, 1, NULL, 0);
}

CUresult cb_on_USER_CREATE(struct cb_request *q)
{
    uint64_t id = cb_take_word(q), number = cb_take_word(q);
    unsigned int references = (unsigned int)cb_take_word(q);
    CUuserObject made;
    if (!cb_taken(q)) return CB_MALFORMED;
    CUresult result = CB_CALL(cuUserObjectCreate)(&made, (void *)(uintptr_t)number, user_object_destroyed,
                                                  references, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    return result == CUDA_SUCCESS ? cb_object_named(q, CB_KIND_USER, id, made) : result;
}
