/*
 * Numbers of objects, which a program holds as its handles. No address looks like one, so a handle that is used
 * as a pointer fails at once. The number of an object of another session of the span is not valid. Streams have
 * three more values: the default streams of CUDA, which are not objects.
 */
#ifndef CALABASH_REMOTE_OBJECTS_H
#define CALABASH_REMOTE_OBJECTS_H

#include "remote/wire/span.h"

enum cb_kind {
    CB_KIND_NONE,
    CB_KIND_CONTEXT,
    CB_KIND_STREAM,
    CB_KIND_EVENT,
    CB_KIND_MODULE,
    CB_KIND_FUNCTION,
    CB_KIND_LIBRARY,
    CB_KIND_KERNEL,
    CB_KIND_POOL,
    CB_KIND_GRAPH,
    CB_KIND_NODE,
    CB_KIND_EXEC,
    CB_KIND_ARRAY,
    CB_KIND_MIPMAP,
    CB_KIND_ALLOCATION,
    CB_KIND_TEXTURE,
    CB_KIND_SURFACE,
    CB_KIND_USER,
    CB_KIND_LINKER,
    CB_KIND_COUNT,
};

#define CB_OBJECT_TAG    0x0cb0ull
#define CB_OBJECTS_MAX   (1u << 20)  /* of one kind, of one session, of each side */
#define CB_WORKER_NUMBER 0x80000000u /* numbers from here on are assigned by the worker */

static inline uint64_t cb_object_id(enum cb_kind kind, uint32_t number)
{
    return CB_OBJECT_TAG << 48 | (uint64_t)kind << 40 | (uint64_t)cb_span_member << 32 | number;
}

static inline bool cb_object_is(uint64_t id, enum cb_kind kind)
{
    return id >> 32 == (CB_OBJECT_TAG << 16 | (uint64_t)kind << 8 | cb_span_member);
}

static inline uint32_t cb_object_number(uint64_t id)
{
    return (uint32_t)id;
}

#endif
