/* Contexts: which are current for a thread is known here alone. */
#ifndef CALABASH_REMOTE_CLIENT_CONTEXT_H
#define CALABASH_REMOTE_CLIENT_CONTEXT_H

#include "remote/client/base.h"

/* Non-zero while this thread is in a call of a per-thread flavour, where stream 0 is its own. */
extern __thread int cb_per_thread;

uint16_t cb_thread_number(void);
/* Of the current context, as frames carry it; 0: none. */
uint16_t cb_context_number(void);
/* A command that nobody waited for has failed. */
void cb_context_failed(uint16_t number, CUresult result);
/* The failure that the current context has not told yet; told once. */
CUresult cb_context_take_failure(void);

#endif
