/*
 * An ordered byte stream in both directions between a program and its worker, over any transport. One thread
 * receives while others send, one at a time.
 */
#ifndef CALABASH_REMOTE_STREAM_H
#define CALABASH_REMOTE_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

struct cb_stream {
    const struct cb_stream_kind *kind; /* NULL: no stream */
    int fd;
    void *own; /* private to the kind */
};

struct cb_stream_kind {
    /* Send all of it; the parts are consumed. Return false if the other side has ended. */
    bool (*send)(struct cb_stream *s, struct iovec *parts, int count);
    /*
     * Receive at least one byte. Return 0 if the other side has ended, or if there is none and `wait` is false
     * (then *gone is false).
     */
    size_t (*receive)(struct cb_stream *s, void *into, size_t capacity, bool wait, bool *gone);
    void (*close)(struct cb_stream *s); /* takes no lock: a forked child closes its parent's stream */
    /* of the worker: report now and then that it lives; NULL: not needed */
    void (*live)(struct cb_stream *s);
};

/* A stream over a connected socket, without further protocol. */
struct cb_stream cb_stream_plain(int fd);

#endif
