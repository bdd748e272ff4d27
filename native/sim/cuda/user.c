/*
 * User objects: something of the program's that lives until nobody refers to it, graphs included.
 */
#include "sim/cuda/user.h"

#include "sim/cuda/object.h"
#include "sim/cuda/process.h"

struct user {
    struct object object;
    unsigned int references;
    CUhostFn destroy;
    void *data;
};

void user_release(struct user *u, unsigned int count)
{
    if (__atomic_sub_fetch(&u->references, count, __ATOMIC_ACQ_REL) != 0) return;
    u->destroy(u->data);
    object_free(u);
}

bool held_add(struct held **list, struct user *u, unsigned int count, bool retain)
{
    struct held *h = malloc(sizeof *h);
    if (!h) return false;
    if (retain) __atomic_add_fetch(&u->references, count, __ATOMIC_RELAXED);
    *h = (struct held){u, count, *list};
    *list = h;
    return true;
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
    if (!object_out || !destroy || !initialRefcount || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    struct user *u = object_new(KIND_USER, sizeof *u);
    if (!u) return CUDA_ERROR_OUT_OF_MEMORY;
    u->references = initialRefcount;
    u->destroy = destroy;
    u->data = ptr;
    *object_out = (CUuserObject)u;
    return CUDA_SUCCESS;
}

CUresult user_get(CUuserObject handle, unsigned int count, struct user **out)
{
    if (!process.ready) return CUDA_ERROR_NOT_INITIALIZED;
    *out = object_get(handle, KIND_USER);
    return *out && count && count <= 0x7FFFFFFFu ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    struct user *u;
    CUresult result = user_get(object, count, &u);
    if (result == CUDA_SUCCESS) __atomic_add_fetch(&u->references, count, __ATOMIC_RELAXED);
    return result;
}

EXPORT CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    struct user *u;
    OK_OR_RETURN(user_get(object, count, &u));
    if (count > u->references) return CUDA_ERROR_INVALID_VALUE;
    user_release(u, count);
    return CUDA_SUCCESS;
}
