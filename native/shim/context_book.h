/*
 * The contexts of this process and what each was charged.
 *
 * Every context of a device is charged limits.context_bytes, the agent's learned figure, before the driver is
 * called: made by cuCtxCreate in whatever version, by the first retain of the primary one, or for graphics. So a
 * slice cannot be overrun by contexts. A green one retains the primary one and costs little beside it. A context's
 * allocations are freed by the driver together with it, those made in a green one with the primary one: the ledger's
 * entries of that context are uncharged then.
 */
#ifndef CALABASH_SHIM_CONTEXT_BOOK_H
#define CALABASH_SHIM_CONTEXT_BOOK_H

#include "shim/base.h"

enum cb_context_kind { CB_CONTEXT_PLAIN, CB_CONTEXT_PRIMARY, CB_CONTEXT_GREEN };

struct cb_context {
    struct cb_context *next;
    void *handle;
    void *converted; /* a green one's handle as a context */
    uint64_t bytes;  /* what it was charged */
    int device;
    unsigned retained; /* primary contexts: how often; others 1 */
    enum cb_context_kind kind;
};

/* Before a context is made: refuses a foreign device and reserves what it will cost. */
CUresult cb_context_opening(CUdevice ordinal, enum cb_context_kind kind, int *device, uint64_t *cost);
/* After: books it, or gives back what was reserved. */
void cb_context_opened(CUresult result, void *handle, int device, uint64_t cost, enum cb_context_kind kind);
/* Takes the record of a context out of the list when it is the one looked for; `all`: however often it is retained. */
bool cb_context_take(void *handle, int primary_of_device, bool all, struct cb_context *taken);
/* It is gone: uncharges it and what lived in it. */
void cb_context_ended(const struct cb_context *context);
/* The primary context of a device if the next release, or a reset, ends it. */
CUcontext cb_context_primary_ending(int device, bool reset);
/* The device of a context that is not a primary one; -1: not known. */
int cb_context_device(const void *handle);
/* How a green context is called as a context. */
void cb_context_converted(void *green, CUcontext converted);
/* The context to which belongs what is made in this one. */
CUcontext cb_context_home(CUcontext context);

#endif
