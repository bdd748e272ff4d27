/* The contexts of this process, and the stack of current contexts of each thread. */
#ifndef CALABASH_REMOTE_CLIENT_CONTEXT_CONTEXT_STACK_H
#define CALABASH_REMOTE_CLIENT_CONTEXT_CONTEXT_STACK_H

#include "remote/client/api/base.h"

#define CB_CONTEXTS_MAX 1024
#define CB_STACK_MAX    64

struct cb_context {
    uint64_t id;
    CUdevice device;
    unsigned int flags;
    bool primary, active;
    unsigned int references; /* of a primary context */
    CUresult failed;         /* returned by the next synchronizing call */
};

struct cb_stack {
    uint64_t id[CB_STACK_MAX];
    int depth;
};
extern __thread struct cb_stack cb_stack;

/* Non-zero while this thread is in a call of the per-thread flavour, where stream 0 is the thread's own. */
extern __thread int cb_per_thread;

uint16_t cb_thread_number(void);
/* NULL: no context has that number. */
struct cb_context *cb_context_of(uint64_t id);
struct cb_context *cb_context_current(void);
/* Number of the current context, as in frames; 0: none. */
uint16_t cb_context_number(void);
/* Assign a number; return false if there are too many. */
bool cb_context_add(struct cb_context *c);
void cb_context_drop(struct cb_context *c);
/* Record that a command without an answer has failed. */
void cb_context_failed(uint16_t number, CUresult result);
/* The failure that the current context has not returned yet; cleared by this call. */
CUresult cb_context_take_failure(void);

#endif
