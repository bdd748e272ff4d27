/*
 * Bytes in order, both ways, between a program and its worker, whatever carries them. One thread receives while others
 * send, one at a time.
 */
#ifndef CALABASH_REMOTE_STREAM_H
#define CALABASH_REMOTE_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

struct cb_stream {
    const struct cb_stream_kind *kind; /* NULL: there is none */
    int fd;
    void *own; /* the kind's */
};

struct cb_stream_kind {
    /* All of it; the parts are used up. False: the other side is gone. */
    bool (*send)(struct cb_stream *s, struct iovec *parts, int count);
    /* At least one byte; 0: the other side is gone, or nothing is there and `wait` is false (then *gone is false). */
    size_t (*receive)(struct cb_stream *s, void *into, size_t room, bool wait, bool *gone);
    void (*close)(struct cb_stream *s); /* takes no lock: a forked child closes what was its parent's */
    void (*live)(
        struct cb_stream *s); /* of the worker: says that it lives, now and then; NULL: nobody asks */
};

/* Over a connected socket, as it is. */
struct cb_stream cb_stream_plain(int fd);

#endif
