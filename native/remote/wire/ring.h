/*
 * A stream through memory that a program and its worker share, on one machine: a page of indices, then a ring for each
 * direction, the program's first. Neither side believes the other: an index is looked at once, compared with the size, and
 * masked; what the ring holds is copied before it is read.
 *
 * Whoever waits for bytes looks for a moment, then sleeps on the socket that the memory came over, where a byte wakes it and
 * the end of the connection says that the other side is gone. Whoever waits for room sleeps on a futex. A worker that is
 * stopped ends nothing: so it counts, once a second, that it lives, and a program that waits looks whether it does. As nothing
 * can be mended here, a program gives it the grace that a network has, on top of the silence, to go on.
 */
#ifndef CALABASH_REMOTE_RING_H
#define CALABASH_REMOTE_RING_H

#include "remote/wire/stream.h"

/* The program's side: memory for it in *memory, to be sent over `fd` and closed. Kind NULL: this system has none. */
struct cb_stream cb_ring_make(int fd, int *memory);
/* The worker's side; takes `memory` in any case. Kind NULL: it is none, or it could be taken away. */
struct cb_stream cb_ring_join(int fd, int memory);
/* What the worker's host has said instead: an enum cb_greeting_status, 0 for nothing. */
int cb_ring_refusal(const struct cb_stream *s);
/* Whether the program has given up a worker that did not say that it lives (alive.h). */
bool cb_ring_is_silent(const struct cb_stream *s);

#endif
