/* The way to the worker: bytes in order, both ways. */
#ifndef CALABASH_REMOTE_LINK_H
#define CALABASH_REMOTE_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

struct cb_link {
    int fd;
};

/* "unix:PATH" or "tcp:HOST:PORT". False with a line in `why`, which has `room` bytes. */
bool cb_link_open(struct cb_link *l, const char *where, char *why, size_t room);
void cb_link_close(struct cb_link *l);
/* All of it; false when the other side is gone. */
bool cb_link_send(struct cb_link *l, struct iovec *parts, int count);
/* At least one byte; 0: the other side is gone, or nothing is there and `wait` is false (then *gone is false). */
size_t cb_link_receive(struct cb_link *l, void *into, size_t room, bool wait, bool *gone);

#endif
