/* One command of the program while it is executed, and its answer. */
#ifndef CALABASH_REMOTE_REQUEST_H
#define CALABASH_REMOTE_REQUEST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define __CUDA_API_PER_THREAD_DEFAULT_STREAM
#include "api/cuda_api.h"

#include "remote/wire/frame.h"
#include "remote/wire/objects.h"
#include "remote_ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Result of a handler for a command that our client cannot have sent: the session ends. */
#define CB_MALFORMED ((CUresult)0x7fffffff)

/* The driver's function; a missing one returns CUDA_ERROR_NOT_SUPPORTED. */
#define CB_CALL(name) ((cb_fn_##name)cb_driver[CB_CUDA_##name])
extern void *cb_driver[CB_CUDA_COUNT];

struct cb_request {
    struct cb_frame frame;
    const uint8_t *at, *end; /* of the payload received; bulk data follows it */
    size_t bulk;             /* bytes of bulk data that are still to be received */
    bool bad;                /* something missing, or an invalid object, was taken */
    CUresult failed;         /* an object is not alive: the call is not made */
    bool answered;           /* the handler has sent the answer */
    uint64_t offer;          /* of the role of reading commands, while a call may wait */
    bool released;           /* other threads read commands now */
    uint8_t *answer;         /* output of the call */
    size_t given, capacity;
};

uint64_t cb_take_word(struct cb_request *q);
void cb_take_bytes(struct cb_request *q, void *into, size_t bytes);
const void *cb_take_block(struct cb_request *q, size_t bytes);
/* Memory for an array; the request is bad if the count is too large. Valid until the next command. */
void *cb_scratch(struct cb_request *q, uint64_t count, size_t bytes);
const char *cb_take_string(struct cb_request *q); /* valid until the next command */
/* Return true if all was present and nothing is left over. */
bool cb_taken(const struct cb_request *q);
void cb_give_word(struct cb_request *q, uint64_t v);
void cb_give_bytes(struct cb_request *q, const void *data, size_t bytes);
void cb_give_string(struct cb_request *q, const char *text);

/*
 * Call this before a call that may wait, after everything was taken: commands of other threads are executed
 * from here on. Afterwards only the request may be used, and nothing of the session, in particular no objects.
 */
void cb_release(struct cb_request *q);

struct cb_served {
    CUresult (*run)(struct cb_request *q);
    const char *name;
    bool answered;
};
extern const struct cb_served cb_served[CB_OP_COUNT];

#endif
