/*
 * Events and streams whose completion the program wants to have reported. It is reported before any answer or
 * notice from which the program could conclude it, and otherwise soon: a thread polls while there are some.
 */
#ifndef CALABASH_REMOTE_WORKER_WATCH_H
#define CALABASH_REMOTE_WORKER_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Report what is done, and send the data of completed copies: after this, an answer may imply that a stream has
 * progressed so far. Return false if nothing was reported.
 */
bool cb_watch_report(void);
/* Call this before the driver's event or stream is destroyed. */
void cb_watch_drop(uint64_t id);
/* Call this before a context is destroyed. */
void cb_watch_drop_context(uint16_t context);
/* A stream is going to be captured: a query of its progress could invalidate the capture. */
void cb_watch_capture(void);

#endif
