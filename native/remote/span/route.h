/*
 * Which session a call goes to: that of the stream, the handle, the device or the memory that it is about, else that of the
 * context that is current for the thread. Where that is another session's, a context of the called one is current meanwhile.
 */
#ifndef CALABASH_REMOTE_SPAN_ROUTE_H
#define CALABASH_REMOTE_SPAN_ROUTE_H

#include "api/cuda_resolve.h"
#include "remote/span/session.h"
#include "remote/wire/objects.h"

#define SPAN_STACK_MAX 64

/* A function of a session; of its per-thread flavour while this thread is in one. */
#define SPAN_CALL(session, name) ((cb_fn_##name)span_function(session, CB_CUDA_##name))

struct span_visit {
    struct span_session *session;
    bool pushed;
};

/* The contexts of a thread, of all sessions. What a session knows of them is those that are its own, in this order. */
struct span_stack {
    uint64_t id[SPAN_STACK_MAX];
    int depth;
};
extern __thread struct span_stack span_stack;
extern __thread int span_per_thread;
extern bool span_ready;                         /* cuInit has succeeded */
extern void *const span_address[CB_CUDA_COUNT]; /* of this library's own functions */
extern const uint16_t span_twin[CB_CUDA_COUNT]; /* per-thread flavours; else the function itself */

void *span_function(const struct span_session *s, int function);
struct span_session *span_current(void);
/* NULL: it is no handle of a session's. */
struct span_session *span_of_handle(uint64_t id);
/* NULL: of no session, but perhaps this process's own memory. */
struct span_session *span_of_address(uint64_t address);
/* A context of that session was current last. */
void span_remember(const struct span_session *s, CUcontext context);
/* Begin a call of a session (NULL: the current one). `address` is what it is about, or 0. */
CUresult span_enter(struct span_visit *v, struct span_session *s, uint64_t address);
void span_leave(const struct span_visit *v);

#endif
