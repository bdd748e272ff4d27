/*
 * A stream through memory that a program and its worker share, on one machine: a page of indices, then a ring
 * for each direction, the program's first. Neither side trusts the other: an index is read once, compared with
 * the size, and masked; what the ring holds is copied before it is interpreted.
 *
 * A reader polls for a moment, then sleeps on the socket over which the memory was passed, where a byte wakes
 * it and the end of the connection says that the other side has ended. A writer that needs space sleeps on a
 * futex. A stopped worker does not end the connection, so the worker increments a count once a second, and a
 * waiting program checks it. As there is no reconnecting here, a program gives the worker the grace of a
 * network connection, in addition to the silence, before it gives up.
 */
#ifndef CALABASH_REMOTE_RING_H
#define CALABASH_REMOTE_RING_H

#include "remote/wire/stream.h"

/*
 * The program's side: memory for it in *memory, to be sent over `fd` and closed. Kind NULL: this system has
 * none.
 */
struct cb_stream cb_ring_make(int fd, int *memory);
/*
 * The worker's side; takes ownership of `memory` in any case. Kind NULL: it is not a valid ring, or could be
 * truncated.
 */
struct cb_stream cb_ring_join(int fd, int memory);
/* Refusal by the worker's host: an enum cb_greeting_status; 0: none. */
int cb_ring_refusal(const struct cb_stream *s);
/* Return true if the program has given up a worker that did not report (alive.h). */
bool cb_ring_is_silent(const struct cb_stream *s);

#endif
