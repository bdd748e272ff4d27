/*
 * Host functions in streams and graphs. The worker puts a function of its own there and sends a notice when it
 * runs; the callback thread then runs the program's function, and the worker's ends when that one has.
 */
#include "remote/client/stream/host_function.h"

#include "remote/client/connection/listener.h"
#include "remote/client/connection/session.h"
#include "remote/client/context/context_stack.h"
#include "remote/client/stream/callback_thread.h"

struct function { /* the function, by the number of the command */
    uint32_t seq;
    CUhostFn run;
    CUstreamCallback callback;
    CUstream stream;
    void *data;
    bool in_stream, ran;
    struct function *next;
};

static struct {
    pthread_mutex_t lock;
    struct function *first;
    int open; /* functions given to streams that have not run */
} functions = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct function *function_find(uint32_t seq, bool take)
{
    pthread_mutex_lock(&functions.lock);
    struct function **at = &functions.first;
    while (*at && (*at)->seq != seq)
        at = &(*at)->next;
    struct function *f = *at;
    if (f && take) *at = f->next;
    pthread_mutex_unlock(&functions.lock);
    return f;
}

static void function_report_done(uint64_t run)
{
    struct cb_call call;
    if (cb_call_begin(&call, CB_OP_HOST_DONE, CB_ANYWHERE) != CUDA_SUCCESS) return;
    cb_put_word(&call, run);
    cb_call_send_now(&call);
}

/* Called in the callback thread. */
static void function_run(const struct cb_notified *n)
{
    struct function *f = function_find(n->seq, !n->kept);
    if (f && f->run)
        f->run(f->data);
    else if (f)
        f->callback(f->stream, n->result, f->data);
    if (f && f->in_stream && !__atomic_exchange_n(&f->ran, true, __ATOMIC_RELAXED))
        __atomic_fetch_sub(&functions.open, 1, __ATOMIC_RELEASE);
    function_report_done(n->word);
    if (n->kept) return;
    free(f);
    cb_listener_expect(-1);
}

static bool host_notice_take(const struct cb_frame *frame)
{
    uint64_t word[2]; /* result, number of this run */
    if (frame->bytes != sizeof word || !cb_notice_receive(word, sizeof word)) return false;
    return cb_callback_queue(function_run, frame, (CUresult)word[0], word[1]);
}

static void functions_after_fork(void)
{
    pthread_mutex_init(&functions.lock, NULL);
}

static void functions_prepare(void)
{
    cb_notice_register(CB_HOST, host_notice_take);
    pthread_atfork(NULL, NULL, functions_after_fork);
}

static CUresult function_issue(struct cb_call *call, const struct function *what, bool asks)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, functions_prepare);
    struct function *f = malloc(sizeof *f);
    if (!f) call->failed = CUDA_ERROR_OUT_OF_MEMORY;
    uint32_t seq = call->answer.seq;
    if (f) {
        *f = *what;
        f->seq = seq;
        pthread_mutex_lock(&functions.lock);
        f->next = functions.first;
        functions.first = f;
        pthread_mutex_unlock(&functions.lock);
        cb_listener_expect(1);
    }
    CUresult result = asks ? cb_call_ask(call) : cb_call_send(call);
    if (f && result != CUDA_SUCCESS && function_find(seq, true)) {
        free(f);
        cb_listener_expect(-1);
    }
    return result;
}

bool cb_host_functions_open(void)
{
    return __atomic_load_n(&functions.open, __ATOMIC_ACQUIRE) > 0;
}

static CUresult function_issue_in_stream(const struct function *what, bool asks)
{
    struct cb_call call;
    CB_OK(cb_call_begin(&call, CB_OP_HOST_CALL, CB_IN_CONTEXT));
    cb_put_handle(&call, CB_KIND_STREAM, (uintptr_t)what->stream);
    cb_put_word(&call, what->callback != NULL);
    __atomic_fetch_add(&functions.open, 1, __ATOMIC_RELAXED);
    CUresult result = function_issue(&call, what, asks);
    if (result != CUDA_SUCCESS) __atomic_fetch_sub(&functions.open, 1, __ATOMIC_RELAXED);
    return result;
}

EXPORT CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
    if (!fn) return CUDA_ERROR_INVALID_VALUE;
    return function_issue_in_stream(
        &(struct function){.run = fn, .data = userData, .stream = hStream, .in_stream = true}, false);
}

EXPORT CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData,
                                    unsigned int flags)
{
    if (!callback || flags) return CUDA_ERROR_INVALID_VALUE;
    return function_issue_in_stream(
        &(struct function){.callback = callback, .data = userData, .stream = hStream, .in_stream = true},
        true);
}

/* ---- nodes of graphs ---- */

static void host_node_put(struct cb_call *call, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
    cb_put_handle(call, CB_KIND_GRAPH, (uintptr_t)graph);
    cb_put_word(call, count);
    for (size_t i = 0; i < count && call->failed == CUDA_SUCCESS; i++)
        cb_put_handle(call, CB_KIND_NODE, (uintptr_t)dependencies[i]);
}

EXPORT CUresult cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                   size_t numDependencies, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    struct cb_call call;
    if (!phGraphNode || !nodeParams || !nodeParams->fn || (numDependencies && !dependencies))
        return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_call_begin(&call, CB_OP_HOST_NODE, CB_ANYWHERE));
    host_node_put(&call, hGraph, dependencies, numDependencies);
    struct function f = {.run = nodeParams->fn, .data = nodeParams->userData};
    CB_OK(function_issue(&call, &f, true));
    *phGraphNode = (CUgraphNode)(uintptr_t)cb_take_word(&call);
    return CUDA_SUCCESS;
}

/* The number of the command that made the node's function. */
EXPORT CUresult cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams)
{
    struct cb_call call;
    if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_call_begin(&call, CB_OP_HOST_NODE_GET, CB_ANYWHERE));
    cb_put_handle(&call, CB_KIND_NODE, (uintptr_t)hNode);
    CB_OK(cb_call_ask(&call));
    const struct function *f = function_find((uint32_t)cb_take_word(&call), false);
    if (!f) return CUDA_ERROR_INVALID_VALUE;
    *nodeParams = (CUDA_HOST_NODE_PARAMS){.fn = f->run, .userData = f->data};
    return CUDA_SUCCESS;
}

static CUresult host_node_set(enum cb_op op, CUgraphExec exec, CUgraphNode node,
                              const CUDA_HOST_NODE_PARAMS *params)
{
    struct cb_call call;
    if (!params || !params->fn) return CUDA_ERROR_INVALID_VALUE;
    CB_OK(cb_call_begin(&call, op, CB_ANYWHERE));
    if (op == CB_OP_HOST_EXEC_SET) cb_put_handle(&call, CB_KIND_EXEC, (uintptr_t)exec);
    cb_put_handle(&call, CB_KIND_NODE, (uintptr_t)node);
    return function_issue(&call, &(struct function){.run = params->fn, .data = params->userData}, true);
}

EXPORT CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    return host_node_set(CB_OP_HOST_NODE_SET, NULL, hNode, nodeParams);
}

EXPORT CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                             const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    return host_node_set(CB_OP_HOST_EXEC_SET, hGraphExec, hNode, nodeParams);
}
