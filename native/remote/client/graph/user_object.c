/* User objects: something of the program's that lives until nobody refers to it, graphs of the worker's included. */
#include "remote/client/api/object_table.h"
#include "remote/client/connection/session.h"
#include "remote/client/stream/callback_thread.h"
#include "remote_wrapped.h"

struct user {
    CUhostFn destroy;
    void *data;
    bool alive;
};

static struct {
    pthread_mutex_t lock;
    struct user **user; /* by number */
    size_t count;
} users = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct user *user_at(uint64_t number)
{
    pthread_mutex_lock(&users.lock);
    struct user *u = number < users.count ? users.user[number] : NULL;
    pthread_mutex_unlock(&users.lock);
    return u;
}

static void run(const struct cb_notified *n)
{
    struct user *u = user_at(n->word);
    if (u) u->destroy(u->data);
}

static bool take(const struct cb_frame *frame)
{
    uint64_t word[2]; /* result, number */
    if (frame->bytes != sizeof word || !cb_notice_receive(word, sizeof word)) return false;
    struct user *u = user_at(word[1]);
    if (u) __atomic_store_n(&u->alive, false, __ATOMIC_RELEASE);
    return cb_notify(run, frame, (CUresult)word[0], word[1]);
}

static bool remember(struct user *u, uint64_t *number)
{
    pthread_mutex_lock(&users.lock);
    if (users.count % 64 == 0) {
        struct user **more = realloc(users.user, (users.count + 64) * sizeof *more);
        if (!more) {
            pthread_mutex_unlock(&users.lock);
            return false;
        }
        users.user = more;
    }
    *number = users.count;
    users.user[users.count++] = u;
    pthread_mutex_unlock(&users.lock);
    return true;
}

EXPORT CUresult cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy,
                                   unsigned int initialRefcount, unsigned int flags)
{
    struct cb_call call;
    uint64_t number;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!object_out || !destroy || !initialRefcount || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    struct user *u = malloc(sizeof *u);
    if (!u) return CUDA_ERROR_OUT_OF_MEMORY;
    *u = (struct user){destroy, ptr, true};
    cb_notice_register(CB_DESTROY, take);
    if (!remember(u, &number)) {
        free(u);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CB_OK(cb_call_begin(&call, CB_OP_USER_CREATE, CB_ANYWHERE));
    uint64_t id = cb_new_object(&call, CB_KIND_USER);
    cb_put_word(&call, id);
    cb_put_word(&call, number);
    cb_put_word(&call, initialRefcount);
    CUresult result = cb_call_ask(&call);
    if (result != CUDA_SUCCESS) return result;
    *cb_object_data(id, CB_KIND_USER) = u;
    *object_out = (CUuserObject)(uintptr_t)id;
    return CUDA_SUCCESS;
}

static CUresult living(CUuserObject object)
{
    void **data = cb_object_data((uintptr_t)object, CB_KIND_USER);
    const struct user *u = data ? *data : NULL;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    return u && __atomic_load_n(&u->alive, __ATOMIC_ACQUIRE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    CB_OK(living(object));
    return cb_remote_cuUserObjectRetain(object, count);
}

EXPORT CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    CB_OK(living(object));
    CUresult result = cb_remote_cuUserObjectRelease(object, count);
    cb_notified_all();
    return result;
}

EXPORT CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                        unsigned int flags)
{
    CB_OK(living(object));
    return cb_remote_cuGraphRetainUserObject(graph, object, count, flags);
}

EXPORT CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    CB_OK(living(object));
    CUresult result = cb_remote_cuGraphReleaseUserObject(graph, object, count);
    cb_notified_all();
    return result;
}

/* What a graph keeps may end with it, and the program may look at once. */
EXPORT CUresult cuGraphDestroy(CUgraph hGraph)
{
    CUresult result = cb_remote_cuGraphDestroy(hGraph);
    cb_notified_all();
    return result;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    CUresult result = cb_remote_cuGraphExecDestroy(hGraphExec);
    cb_notified_all();
    return result;
}
