/*
 * Pages of the worker's own that the driver copies to and from by itself: page-locked, for every context. The lock goes with
 * the context in which it was made, the pages do not; then it is made anew.
 */
#ifndef CALABASH_REMOTE_WORKER_PINNED_H
#define CALABASH_REMOTE_WORKER_PINNED_H

#include "remote/worker/request.h"

struct cb_pinned {
    uint8_t *data;
    size_t bytes;
    unsigned int age; /* how many contexts had ended when it was locked */
};

/* Pages for so many bytes; false: there are none, or the driver does not lock them. */
bool cb_pinned_make(struct cb_pinned *p, size_t bytes);
/* Before a copy: locked again, if contexts have ended since. */
void cb_pinned_renew(struct cb_pinned *p);
/* No copy uses them any more. */
void cb_pinned_end(struct cb_pinned *p);
/* A context is about to end. */
void cb_pinned_context_ends(void);

#endif
