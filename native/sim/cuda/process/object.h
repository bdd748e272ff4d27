/*
 * Objects behind handles.
 *
 * Handles are pointers to objects in one arena that is never unmapped, so any value that a program passes can
 * be checked: its magic identifies an object, and other values return INVALID_HANDLE.
 */
#ifndef CALABASH_SIM_CUDA_PROCESS_OBJECT_H
#define CALABASH_SIM_CUDA_PROCESS_OBJECT_H

#include "sim/cuda/process/call.h"

enum kind {
    KIND_FREE = 0,
    KIND_CONTEXT = 0x43A1,
    KIND_STREAM,
    KIND_STREAM_ENDING, /* destroyed, with work under way */
    KIND_STREAM_ORPHAN, /* its green context was destroyed before it */
    KIND_EVENT,
    KIND_EVENT_ENDING, /* destroyed, while work still refers to it */
    KIND_MODULE,
    KIND_LIBRARY,
    KIND_FUNCTION,
    KIND_GRAPH,
    KIND_NODE,
    KIND_EXEC,
    KIND_POOL,
    KIND_ARRAY,
    KIND_MIPMAP,
    KIND_PHYSICAL,
    KIND_TEXTURE,
    KIND_LINK,
    KIND_USER, /* a user object */
    KIND_GREEN,
    KIND_RESOURCES, /* the descriptor of a future green context */
};

struct object {
    uint32_t kind;
    uint32_t generation;
};

void *object_new(enum kind kind, size_t size);
void object_free(void *object);
/* The object if `handle` is a live one of this kind, else NULL. Never faults. */
void *object_get(const void *handle, enum kind kind);

#endif
