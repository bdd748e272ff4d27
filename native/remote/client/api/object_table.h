/* Objects of this process, by kind and number. */
#ifndef CALABASH_REMOTE_CLIENT_API_OBJECT_TABLE_H
#define CALABASH_REMOTE_CLIENT_API_OBJECT_TABLE_H

#include "remote/client/api/base.h"
#include "remote/client/stream/progress.h"
#include "remote/wire/objects.h"

/* A number for a new object; 0: there are too many. */
uint64_t cb_object_new(enum cb_kind kind);
void cb_drop_object(uint64_t id);
/* Whether it may be an object of that kind: ours and alive, or one that the worker has numbered. */
bool cb_object_alive(uint64_t id, enum cb_kind kind);
/* One that the worker has numbered is known from now on. False: no memory. */
bool cb_object_learn(uint64_t id, void *data);
/* What is remembered of one; NULL when it is not alive. */
void **cb_object_data(uint64_t id, enum cb_kind kind);
/* How far one of ours has come; NULL when it is not alive, or not ours. */
struct cb_progress *cb_object_progress(uint64_t id, enum cb_kind kind);

#endif
