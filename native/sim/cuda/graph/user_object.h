/* User objects, and lists of them that somebody holds. */
#ifndef CALABASH_SIM_CUDA_GRAPH_USER_OBJECT_H
#define CALABASH_SIM_CUDA_GRAPH_USER_OBJECT_H

#include "sim/cuda/process/object.h"

struct user;

struct held {
    struct user *user;
    unsigned int count;
    struct held *next;
};

/* Both the object behind a handle and the count are checked. */
CUresult user_get(CUuserObject handle, unsigned int count, struct user **out);
void user_release(struct user *u, unsigned int count);
/* The list gets so many references: new ones, or with `move` the program's. Refused where it has not so many. */
CUresult user_hold(struct held **list, struct user *u, unsigned int count, bool move);
bool held_copy(struct held **to, const struct held *from);
void held_release(struct held **list);

#endif
