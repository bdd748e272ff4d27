/*
 * A stream that survives its connection. The bytes of each direction are counted; the sender keeps those that the other
 * side has not said it has, up to CB_KEPT_BYTES, and says them again over the next connection. So each byte arrives once,
 * whatever frames they make.
 *
 * A worker that says nothing for too long while the program waits (alive.h) is left by breaking the connection: so one
 * that was stopped for a while is found again, and what it missed is said again.
 *
 * On a connection there is a hello of the program, then chunks: a header and so many bytes. To the hello of a program that
 * comes back the worker answers with one of its own; then both know where to go on.
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
    uint32_t grace_ms; /* how long the program would wait for us to come back, and we for it */
    uint32_t flags;    /* enum cb_resume_flag */
    uint64_t received; /* bytes of the other direction */
};

enum cb_resume_flag {
    CB_RESUME_AGAIN = 1, /* this session has had a connection */
    CB_RESUME_GONE = 2,  /* from the worker: what you come back to is not here */
};

struct cb_chunk {
    uint32_t bytes; /* that follow */
    uint32_t kind;  /* enum cb_chunk_kind */
    uint64_t received;
};

enum cb_chunk_kind {
    CB_CHUNK_BYTES,
    CB_CHUNK_LEAVING, /* nothing comes after it */
    CB_CHUNK_ASKING,  /* whether you live: any chunk says so, one of no bytes as well */
    CB_CHUNK_KINDS,
};

/* A new connection for the program's side, in that time; NULL: not now. */
typedef struct cb_tls *cb_resume_dial(void *own, int timeout_ms);

/* The program's side, on its first connection; kind NULL: there is no memory. */
struct cb_stream cb_resume_client(struct cb_tls *first, int grace_ms, cb_resume_dial *dial, void *own);
/* The worker's side; false: the program comes back to something else, or says no hello in time. */
struct cb_stream cb_resume_server(struct cb_tls *first, int timeout_ms);
/* The program is back over another connection, which is taken. May be called by any thread. */
bool cb_resume_back(struct cb_stream *s, struct cb_tls *again, int timeout_ms);
/* The program ends: the worker need not wait for it. */
void cb_resume_leave(struct cb_stream *s);
/* Milliseconds without a connection that are left of the grace; -1: there is one, or nobody waits any more. */
int cb_resume_left_ms(struct cb_stream *s);
bool cb_resume_is(const struct cb_stream *s);

#endif
