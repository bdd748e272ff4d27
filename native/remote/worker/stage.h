/*
 * Staging buffers: pinned pieces of memory between the connection and the driver, small enough for the
 * processor's cache, in use until a copy is done.
 */
#ifndef CALABASH_REMOTE_WORKER_STAGE_H
#define CALABASH_REMOTE_WORKER_STAGE_H

#include "remote/worker/pinned.h"
#include "remote/worker/request.h"

#define CB_STAGE_BYTES (512u << 10)

struct cb_stage {
    struct cb_pinned pages;
    uint8_t *data; /* the buffer */
    size_t filled;
    CUcontext context; /* of the event */
    CUevent event;     /* recorded after the last copy */
    CUstream stream;
    bool used; /* by a copy that may not be done */
    bool held; /* by the thread that has taken it */
};

/* Take a buffer that no copy uses, for the current context; NULL: no memory. */
struct cb_stage *cb_stage_take(void);
/* Space for `bytes` that a copy in `stream` will read; several small copies share a buffer. */
struct cb_stage *cb_stage_append(CUstream stream, size_t bytes);
/* Note that a copy that uses it was issued to the stream. */
CUresult cb_stage_used(struct cb_stage *s, CUstream stream);
/* Wait for that copy. */
CUresult cb_stage_wait(struct cb_stage *s);
/* Release a buffer that the taker no longer accesses; a copy still may. */
void cb_stage_release(struct cb_stage *s);

#endif
