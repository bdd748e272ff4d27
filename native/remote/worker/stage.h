/* Pinned memory between the line and the driver: pieces that stay in the processor's cache, in use until a copy is over. */
#ifndef CALABASH_REMOTE_WORKER_STAGE_H
#define CALABASH_REMOTE_WORKER_STAGE_H

#include "remote/worker/pinned.h"
#include "remote/worker/request.h"

#define CB_STAGE_BYTES (512u << 10)

struct cb_stage {
    struct cb_pinned pages;
    uint8_t *data; /* theirs */
    size_t filled;
    CUcontext context; /* of the event */
    CUevent event;     /* after the last copy */
    CUstream stream;
    bool used; /* by a copy that may not be over */
    bool held; /* by whoever has taken it */
};

/* One that no copy uses any more, for the current context; NULL: no memory. */
struct cb_stage *cb_stage_take(void);
/* Room for `bytes` that a copy in `stream` will read; several small copies share one. */
struct cb_stage *cb_stage_room(CUstream stream, size_t bytes);
/* A copy that uses it has been given to the stream. */
CUresult cb_stage_used(struct cb_stage *s, CUstream stream);
/* Wait for that copy. */
CUresult cb_stage_wait(struct cb_stage *s);
/* Whoever has taken it does not look at it any more; a copy still may. */
void cb_stage_give(struct cb_stage *s);

#endif
