/*
 * Routing of calls to sessions: to that of the stream, handle, device or memory that the call concerns, else to
 * that of the thread's current context. If the current context belongs to another session, a context of the
 * called session is made current for the call.
 */
#ifndef CALABASH_REMOTE_SPAN_ROUTE_H
#define CALABASH_REMOTE_SPAN_ROUTE_H

#include "api/cuda_resolve.h"
#include "remote/span/session.h"
#include "remote/wire/objects.h"

#define SPAN_STACK_MAX 64

/* A function of a session, in its per-thread flavour while this thread is in such a call. */
#define SPAN_CALL(session, name) ((cb_fn_##name)span_function(session, CB_CUDA_##name))

struct span_visit {
    struct span_session *session;
    bool pushed;
};

/* The contexts of a thread, of all sessions. Each session has those that are its own, in this order. */
struct span_stack {
    uint64_t id[SPAN_STACK_MAX];
    int depth;
};
extern __thread struct span_stack span_stack;
extern __thread int span_per_thread;
extern bool span_ready;                         /* cuInit has succeeded */
extern void *const span_address[CB_CUDA_COUNT]; /* of this library's own functions */
/* per-thread variants; else the function itself */
extern const uint16_t span_per_thread_variant[CB_CUDA_COUNT];

void *span_function(const struct span_session *s, int function);
struct span_session *span_current(void);
/* NULL: not a handle of a session. */
struct span_session *span_of_handle(uint64_t id);
/* NULL: not of a session, but perhaps this process's own memory. */
struct span_session *span_of_address(uint64_t address);
/* Note that a context of that session was current last. */
void span_remember(const struct span_session *s, CUcontext context);
/* Begin a call of a session (NULL: the current one). `address` is the memory that it concerns, or 0. */
CUresult span_enter(struct span_visit *v, struct span_session *s, uint64_t address);
void span_leave(const struct span_visit *v);

#endif
