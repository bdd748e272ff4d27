/*
 * A stream that survives its connection. The bytes of each direction are counted; the sender keeps those that
 * the other side has not acknowledged, up to CB_KEPT_BYTES, and sends them again over the next connection. So
 * each byte arrives once, independent of frame boundaries.
 *
 * If a worker is silent for too long while the program waits (alive.h), the connection is broken: a worker that
 * was stopped for a while is found again, and what it missed is sent again.
 *
 * A connection begins with a hello of the program, followed by chunks: a header and so many bytes. The worker
 * answers the hello of a program that reconnects with one of its own; then both know where to continue.
 */
#ifndef CALABASH_REMOTE_RESUME_H
#define CALABASH_REMOTE_RESUME_H

#include "remote/wire/stream.h"
#include "remote/wire/tls.h"

#define CB_KEPT_BYTES   (16u << 20)
#define CB_GRACE_MAX_MS 3600000u
#define CB_RESUME_MAGIC 0x454d55534552ull /* "RESUME" */

struct cb_resume_hello {
    uint64_t magic;
    uint32_t grace_ms; /* how long each side waits for the other to come back */
    uint32_t flags;    /* enum cb_resume_flag */
    uint64_t received; /* bytes of the other direction */
};

enum cb_resume_flag {
    CB_RESUME_AGAIN = 1, /* this session has had a connection */
    CB_RESUME_GONE = 2,  /* from the worker: the session that you reconnect to does not exist */
};

struct cb_chunk {
    uint32_t bytes; /* that follow */
    uint32_t kind;  /* enum cb_chunk_kind */
    uint64_t received;
};

enum cb_chunk_kind {
    CB_CHUNK_BYTES,
    CB_CHUNK_LEAVING, /* nothing comes after it */
    CB_CHUNK_ASKING,  /* asks for a sign of life: any chunk is one, also a chunk of no bytes */
    CB_CHUNK_KINDS,
};

/* Make a new connection for the program's side, in that time; NULL: failed. */
typedef struct cb_tls *cb_resume_dial(void *own, int timeout_ms);

/* The program's side, on its first connection; kind NULL: no memory. */
struct cb_stream cb_resume_client(struct cb_tls *first, int grace_ms, cb_resume_dial *dial, void *own);
/* The worker's side. It fails if the program reconnects to another session, or sends no hello in time. */
struct cb_stream cb_resume_server(struct cb_tls *first, int timeout_ms);
/* Continue on another connection of the program, of which it takes ownership. May be called by any thread. */
bool cb_resume_reconnect(struct cb_stream *s, struct cb_tls *again, int timeout_ms);
/* Announce that the program ends: the worker need not wait for it. */
void cb_resume_leave(struct cb_stream *s);
/* Milliseconds of the grace that are left; -1: connected, or the stream has ended. */
int cb_resume_left_ms(struct cb_stream *s);
bool cb_resume_is(const struct cb_stream *s);

#endif
