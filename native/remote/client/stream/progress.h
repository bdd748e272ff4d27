/*
 * Known progress of events and streams. Progress that is not known is asked for, and from then on reported by
 * the worker, so that a query only reads this record.
 */
#ifndef CALABASH_REMOTE_CLIENT_STREAM_PROGRESS_H
#define CALABASH_REMOTE_CLIENT_STREAM_PROGRESS_H

#include "remote/client/api/base.h"

enum cb_progress_state {
    CB_PROGRESS_UNKNOWN,
    CB_PROGRESS_ASKED,   /* an answer is expected */
    CB_PROGRESS_PENDING, /* not done; the worker will report it */
    CB_PROGRESS_DONE,
};

struct cb_progress {
    uint32_t seq;     /* the command that `state` is about */
    uint32_t touched; /* of a stream: the last command that used it */
    uint32_t age;     /* when this was recorded; it is void after a later failure */
    uint8_t state;    /* enum cb_progress_state */
    bool elsewhere;   /* of an event: graphs record it as well */
};

/* Called with 1 when a report is expected, with -1 when none is any more; it takes no lock of the caller's. */
extern void (*cb_progress_expects)(int more);

void cb_progress_set(struct cb_progress *p, uint32_t seq, enum cb_progress_state state);
/* The same, if it is asked or pending up to that very command; `if_pending`: or only asked. */
void cb_progress_settle(struct cb_progress *p, uint32_t seq, enum cb_progress_state state, bool if_pending);
enum cb_progress_state cb_progress_of(const struct cb_progress *p);
/* A context has ended or failed: all recorded progress is void. */
void cb_progress_invalidate(void);
void cb_progress_after_fork(void); /* in a child */

#endif
