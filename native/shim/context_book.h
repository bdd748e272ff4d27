/*
 * Records of the contexts of this process and of the charge of each.
 *
 * Every context of a device is charged limits.context_bytes, the cost that the agent has learned, before the
 * driver is called: whether it is created by any version of cuCtxCreate, by the first retain of the primary
 * context, or for graphics. Contexts therefore cannot exceed a slice. A green context retains the primary one
 * and costs little beside it. The driver frees a context's allocations together with it, and those made in a
 * green context with the primary one: the ledger's entries of that context are then uncharged.
 */
#ifndef CALABASH_SHIM_CONTEXT_BOOK_H
#define CALABASH_SHIM_CONTEXT_BOOK_H

#include "shim/base.h"

enum cb_context_kind { CB_CONTEXT_PLAIN, CB_CONTEXT_PRIMARY, CB_CONTEXT_GREEN };

struct cb_context {
    struct cb_context *next;
    void *handle;
    void *converted; /* a green context's handle as a CUcontext */
    uint64_t bytes;  /* its charge */
    int device;
    unsigned retained; /* primary contexts: the retain count; others 1 */
    enum cb_context_kind kind;
};

/* Before a context is created: refuse a device outside the slice, and reserve the cost. */
CUresult cb_context_opening(CUdevice ordinal, enum cb_context_kind kind, int *device, uint64_t *cost);
/* After the driver has answered: record the context, or return the reservation. */
void cb_context_opened(CUresult result, void *handle, int device, uint64_t cost, enum cb_context_kind kind);
/* Remove the record of the given context from the list; `all`: whatever its retain count. */
bool cb_context_take(void *handle, int primary_of_device, bool all, struct cb_context *taken);
/* Uncharge a destroyed context and what was allocated in it. */
void cb_context_ended(const struct cb_context *context);
/* The primary context of a device, if the next release, or a reset, destroys it. */
CUcontext cb_context_primary_ending(int device, bool reset);
/* The device of a context other than a primary one; -1: unknown. */
int cb_context_device(const void *handle);
/* Record the CUcontext handle of a green context. */
void cb_context_converted(void *green, CUcontext converted);
/* The context that owns what is created in this one: for a green context the primary one. */
CUcontext cb_context_home(CUcontext context);

#endif
