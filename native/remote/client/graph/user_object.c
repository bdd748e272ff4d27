/*
 * User objects: data of the program that lives until the last reference is released, references by the worker's
 * graphs included.
 */
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

static void user_destroy_run(const struct cb_notified *n)
{
    struct user *u = user_at(n->word);
    if (u) u->destroy(u->data);
}

static bool destroy_notice_take(const struct cb_frame *frame)
{
    uint64_t word[2]; /* result, number */
    if (frame->bytes != sizeof word || !cb_notice_receive(word, sizeof word)) return false;
    struct user *u = user_at(word[1]);
    if (u) __atomic_store_n(&u->alive, false, __ATOMIC_RELEASE);
    return cb_callback_queue(user_destroy_run, frame, (CUresult)word[0], word[1]);
}

static bool user_add(struct user *u, uint64_t *number)
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
    cb_notice_register(CB_DESTROY, destroy_notice_take);
    if (!user_add(u, &number)) {
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

static CUresult user_alive(CUuserObject object)
{
    void **data = cb_object_data((uintptr_t)object, CB_KIND_USER);
    const struct user *u = data ? *data : NULL;
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    return u && __atomic_load_n(&u->alive, __ATOMIC_ACQUIRE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    CB_OK(user_alive(object));
    return cb_remote_cuUserObjectRetain(object, count);
}

EXPORT CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    CB_OK(user_alive(object));
    CUresult result = cb_remote_cuUserObjectRelease(object, count);
    cb_callbacks_wait();
    return result;
}

EXPORT CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                        unsigned int flags)
{
    CB_OK(user_alive(object));
    return cb_remote_cuGraphRetainUserObject(graph, object, count, flags);
}

EXPORT CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    CB_OK(user_alive(object));
    CUresult result = cb_remote_cuGraphReleaseUserObject(graph, object, count);
    cb_callbacks_wait();
    return result;
}

/* Objects that a graph keeps may be released with it, and the program may rely on that at once. */
EXPORT CUresult cuGraphDestroy(CUgraph hGraph)
{
    CUresult result = cb_remote_cuGraphDestroy(hGraph);
    cb_callbacks_wait();
    return result;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    CUresult result = cb_remote_cuGraphExecDestroy(hGraphExec);
    cb_callbacks_wait();
    return result;
}
