/*
 * Events and streams that the program wants to know done without asking. It is told before any answer or notice from which
 * it could conclude so, and otherwise soon: a thread looks while there are some.
 */
#ifndef CALABASH_REMOTE_WORKER_WATCH_H
#define CALABASH_REMOTE_WORKER_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Tell what is done, and send what copies have brought: after this, an answer may tell that a stream has come so far.
 * False: nothing was told.
 */
bool cb_watch_tell(void);
/* Before the driver's event or stream is destroyed. */
void cb_watch_drop(uint64_t id);
/* Before a context is destroyed. */
void cb_watch_forget(uint16_t context);
/* A stream is going to be captured: to ask whether one is done could spoil that. */
void cb_watch_capture(void);

#endif
