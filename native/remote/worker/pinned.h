/*
 * Pinned pages of the worker, which the driver copies to and from directly: page-locked, for every context. The
 * page lock ends with the context in which it was made, the pages do not; the lock is then renewed.
 */
#ifndef CALABASH_REMOTE_WORKER_PINNED_H
#define CALABASH_REMOTE_WORKER_PINNED_H

#include "remote/worker/request.h"

struct cb_pinned {
    uint8_t *data;
    size_t bytes;
    unsigned int age; /* number of contexts that had ended when it was locked */
};

/* Make pages for so many bytes; return false if there are none, or the driver does not lock them. */
bool cb_pinned_make(struct cb_pinned *p, size_t bytes);
/* Lock them again, if contexts have ended since; call it before a copy. */
void cb_pinned_renew(struct cb_pinned *p);
/* Free the pages; no copy may be using them. */
void cb_pinned_end(struct cb_pinned *p);
/* Note that a context is about to end. */
void cb_pinned_context_ends(void);

#endif
