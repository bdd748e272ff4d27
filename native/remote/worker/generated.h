/* Declarations that the generated handlers use. */
#ifndef CALABASH_REMOTE_WORKER_GENERATED_H
#define CALABASH_REMOTE_WORKER_GENERATED_H

#include "remote/worker/object.h"
#include "remote/worker/request.h"

/* Handlers written by hand, by command; true: the handler is followed by an answer. */
#define CB_OWN_HANDLERS(X)   \
    X(HELLO, true)           \
    X(NVML, true)            \
    X(CONTEXT_PRIMARY, true) \
    X(CONTEXT_RESET, true)   \
    X(CONTEXT_CREATE, true)  \
    X(CONTEXT_DESTROY, true) \
    X(POINTER, true)         \
    X(POOL_GET, true)        \
    X(POOL_SET, true)        \
    X(IMAGE, false)          \
    X(IMAGE_LOAD, true)      \
    X(IMAGE_MORE, true)      \
    X(IMAGE_UNLOAD, false)   \
    X(FUNCTION, true)        \
    X(KERNEL_FUNCTION, true) \
    X(LIBRARY_MODULE, true)  \
    X(LINKER_CREATE, true)   \
    X(LINKER_ADD, true)      \
    X(LINKER_COMPLETE, true) \
    X(LINKER_FETCH, true)    \
    X(LINKER_DESTROY, true)  \
    X(LAUNCH, false)         \
    X(LAUNCH_EX, false)      \
    X(BLOCK_SIZE, true)      \
    X(CLUSTERS, true)        \
    X(COPY_IN, false)        \
    X(COPY_OUT, true)        \
    X(COPY_WITHIN, false)    \
    X(COPY_PEER, false)      \
    X(FILL, false)           \
    X(BOX_IN, false)         \
    X(BOX_OUT, true)         \
    X(BOX_WITHIN, false)     \
    X(ARRAY_IN, false)       \
    X(ARRAY_OUT, true)       \
    X(MANAGED, true)         \
    X(TWIN_MAP, true)        \
    X(TWIN_DROP, false)      \
    X(TWIN_WRITE, false)     \
    X(TWIN_READ, true)       \
    X(RETAIN, true)          \
    X(FETCH, false)          \
    X(HOST_CALL, false)      \
    X(HOST_DONE, false)      \
    X(HOST_NODE, true)       \
    X(HOST_NODE_GET, true)   \
    X(HOST_NODE_SET, true)   \
    X(HOST_EXEC_SET, true)   \
    X(USER_CREATE, true)     \
    X(NODES, true)           \
    X(KERNEL_NODE, true)     \
    X(MEMCPY_NODE, true)     \
    X(MEM_ALLOC_NODE, true)  \
    X(CAPTURE_INFO, true)    \
    X(EVENT_RECORD, false)   \
    X(EVENT_QUERY, true)     \
    X(STREAM_QUERY, true)

#define CB_DECLARE(name, answered) CUresult cb_on_##name(struct cb_request *q);
CB_OWN_HANDLERS(CB_DECLARE)
#undef CB_DECLARE

#endif
