/* Table of the objects of this process, by kind and number. */
#ifndef CALABASH_REMOTE_CLIENT_API_OBJECT_TABLE_H
#define CALABASH_REMOTE_CLIENT_API_OBJECT_TABLE_H

#include "remote/client/api/base.h"
#include "remote/client/stream/progress.h"
#include "remote/wire/objects.h"

/* Assign a number to a new object; 0: there are too many. */
uint64_t cb_object_new(enum cb_kind kind);
void cb_drop_object(uint64_t id);
/* Return true if it may be an object of that kind: ours and alive, or numbered by the worker. */
bool cb_object_alive(uint64_t id, enum cb_kind kind);
/* Add an object that the worker has numbered. Return false if there is no memory. */
bool cb_object_learn(uint64_t id, void *data);
/* Data stored with an object; NULL if it is not alive. */
void **cb_object_data(uint64_t id, enum cb_kind kind);
/* Progress of one of our objects; NULL if it is not alive, or not ours. */
struct cb_progress *cb_object_progress(uint64_t id, enum cb_kind kind);

#endif
