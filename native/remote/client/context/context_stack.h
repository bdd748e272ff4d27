/* Contexts as this process knows them, and the stack of those that are current for a thread. */
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
    unsigned int references; /* of a primary one */
    CUresult failed;         /* told by the next synchronizing call */
};

struct cb_stack {
    uint64_t id[CB_STACK_MAX];
    int depth;
};
extern __thread struct cb_stack cb_stack;

/* Non-zero while this thread is in a call of a per-thread flavour, where stream 0 is its own. */
extern __thread int cb_per_thread;

uint16_t cb_thread_number(void);
/* NULL: there is none of that number. */
struct cb_context *cb_context_of(uint64_t id);
struct cb_context *cb_context_current(void);
/* Of the current context, as frames carry it; 0: none. */
uint16_t cb_context_number(void);
/* Give it a number; false: there are too many. */
bool cb_context_add(struct cb_context *c);
void cb_context_drop(struct cb_context *c);
/* A command that nobody waited for has failed. */
void cb_context_failed(uint16_t number, CUresult result);
/* The failure that the current context has not told yet; told once. */
CUresult cb_context_take_failure(void);

#endif
