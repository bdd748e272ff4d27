/* User objects, and lists of references to them. */
#ifndef CALABASH_SIM_CUDA_GRAPH_USER_OBJECT_H
#define CALABASH_SIM_CUDA_GRAPH_USER_OBJECT_H

#include "sim/cuda/process/object.h"

struct user;

struct held {
    struct user *user;
    unsigned int count;
    struct held *next;
};

/* Check both the object behind a handle and the count. */
CUresult user_get(CUuserObject handle, unsigned int count, struct user **out);
void user_release(struct user *u, unsigned int count);
/*
 * Give the list so many references: new ones, or with `move` the program's. Refused if the program has fewer.
 */
CUresult user_hold(struct held **list, struct user *u, unsigned int count, bool move);
bool held_copy(struct held **to, const struct held *from);
void held_release(struct held **list);

#endif
