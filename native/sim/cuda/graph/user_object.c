/*
 * User objects: data of the program that lives until the last reference, by the program or a graph, is
 * released.
 */
#include "sim/cuda/graph/user_object.h"

#include "sim/cuda/process/object.h"
#include "sim/cuda/process/process.h"

#define COUNT_MAX 0x7FFFFFFFu

struct user {
    struct object object;
    unsigned int references; /* total */
    unsigned int own;        /* the program's part, held by no graph */
    CUhostFn destroy;
    void *data;
};

void user_release(struct user *u, unsigned int count)
{
    if (__atomic_sub_fetch(&u->references, count, __ATOMIC_ACQ_REL) != 0) return;
    u->destroy(u->data);
    object_free(u);
}

/*
 * Add to a counter unless it would overflow, or subtract unless it would be negative; return false if refused.
 */
static bool counter_add(unsigned int *counter, unsigned int count)
{
    unsigned int was = __atomic_load_n(counter, __ATOMIC_RELAXED);
    do {
        if (count > COUNT_MAX - was) return false;
    } while (
        !__atomic_compare_exchange_n(counter, &was, was + count, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    return true;
}

static bool counter_subtract(unsigned int *counter, unsigned int count)
{
    unsigned int was = __atomic_load_n(counter, __ATOMIC_RELAXED);
    do {
        if (count > was) return false;
    } while (
        !__atomic_compare_exchange_n(counter, &was, was - count, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    return true;
}

static bool held_add(struct held **list, struct user *u, unsigned int count, bool retain)
{
    struct held *h = malloc(sizeof *h);
    if (!h || (retain && !counter_add(&u->references, count))) {
        free(h);
        return false;
    }
    *h = (struct held){u, count, *list};
    *list = h;
    return true;
}

CUresult user_hold(struct held **list, struct user *u, unsigned int count, bool move)
{
    if (move && !counter_subtract(&u->own, count)) return CUDA_ERROR_INVALID_VALUE;
    if (held_add(list, u, count, !move)) return CUDA_SUCCESS;
    if (move) (void)counter_add(&u->own, count);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

bool held_copy(struct held **to, const struct held *from)
{
    for (const struct held *h = from; h; h = h->next) {
        if (!held_add(to, h->user, h->count, true)) return false;
    }
    return true;
}

void held_release(struct held **list)
{
    while (*list) {
        struct held *h = *list;
        *list = h->next;
        user_release(h->user, h->count);
        free(h);
    }
}

EXPORT CUresult cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy,
                                   unsigned int initialRefcount, unsigned int flags)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    if (!object_out || !destroy || !initialRefcount || initialRefcount > COUNT_MAX ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    struct user *u = object_new(KIND_USER, sizeof *u);
    if (!u) return CUDA_ERROR_OUT_OF_MEMORY;
    u->references = u->own = initialRefcount;
    u->destroy = destroy;
    u->data = ptr;
    *object_out = (CUuserObject)u;
    return CUDA_SUCCESS;
}

CUresult user_get(CUuserObject handle, unsigned int count, struct user **out)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    *out = object_get(handle, KIND_USER);
    return *out && count && count <= COUNT_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    struct user *u;
    OK_OR_RETURN(user_get(object, count, &u));
    if (!counter_add(&u->references, count)) return CUDA_ERROR_INVALID_VALUE;
    return counter_add(&u->own, count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    struct user *u;
    OK_OR_RETURN(user_get(object, count, &u));
    if (!counter_subtract(&u->own, count)) return CUDA_ERROR_INVALID_VALUE;
    user_release(u, count);
    return CUDA_SUCCESS;
}
