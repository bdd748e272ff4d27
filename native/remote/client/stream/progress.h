/*
 * How far events and streams have come: what is known of it here. What is not known is asked, and from then on told by
 * the worker, so that a query is a look at this.
 */
#ifndef CALABASH_REMOTE_CLIENT_STREAM_PROGRESS_H
#define CALABASH_REMOTE_CLIENT_STREAM_PROGRESS_H

#include "remote/client/api/base.h"

enum cb_progress_state {
    CB_PROGRESS_UNKNOWN,
    CB_PROGRESS_ASKED,   /* an answer is on its way */
    CB_PROGRESS_PENDING, /* not done; it will be told */
    CB_PROGRESS_DONE,
};

struct cb_progress {
    uint32_t seq;     /* the command that `state` is about */
    uint32_t touched; /* of a stream: the last command that named it */
    uint32_t age;     /* of what is known; it is worth nothing when something has gone wrong since */
    uint8_t state;    /* enum cb_progress_state */
    bool elsewhere;   /* of an event: graphs record it, too */
};

/* Called with 1 when something is pending, with -1 when nothing is any more; it takes no lock of the caller's. */
extern void (*cb_progress_expects)(int more);

void cb_progress_set(struct cb_progress *p, uint32_t seq, enum cb_progress_state state);
/* The same, if it is asked or pending up to that very command; `if_pending`: or only asked. */
void cb_progress_settle(struct cb_progress *p, uint32_t seq, enum cb_progress_state state, bool if_pending);
enum cb_progress_state cb_progress_of(const struct cb_progress *p);
/* A context has ended or failed: nothing is known any more. */
void cb_progress_doubt(void);
void cb_progress_forget(void); /* in a child */

#endif
