/*
 * A call that travels: begun, filled, and sent or asked. Between begin and its end it holds the line, so that commands of
 * all threads have one order. Commands gather in a buffer: it is sent by whoever asks, when it is full, or after some
 * microseconds by a thread that sleeps when there is nothing to do.
 */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_CALL_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_CALL_H

#include "remote/client/api/base.h"
#include "remote/client/connection/answers.h"
#include "remote/wire/frame.h"
#include "remote/wire/objects.h"
#include "remote_ops.h"

/* Which context must be current: any or none, a living one, or any or none but not one that was destroyed. */
enum cb_where { CB_ANYWHERE, CB_IN_CONTEXT, CB_NOT_IN_DEAD };

struct cb_call {
    uint8_t *frame, *at, *end;
    CUresult failed;
    size_t taken; /* of what was answered */
    struct cb_answer answer;
};

/* The number of the question that this thread has asked last. */
extern __thread uint32_t cb_asked_seq;

bool cb_session_ready(void); /* cuInit has succeeded in this very process */

/* Called before a command that may use memory, and when a question has been answered after which the program may look at
 * what devices wrote; NULL: nobody cares. */
extern void (*cb_before_command)(enum cb_op op);
extern void (*cb_after_wait)(enum cb_op op);

CUresult cb_call_begin(struct cb_call *c, enum cb_op op, enum cb_where where);
/* The same, whatever the state of the session is. */
CUresult cb_call_begin_as(struct cb_call *c, enum cb_op op, uint16_t context);
void cb_put_word(struct cb_call *c, uint64_t v);
void cb_put_bytes(struct cb_call *c, const void *data, size_t bytes);
void cb_put_string(struct cb_call *c, const char *text);
void cb_put_handle(struct cb_call *c, enum cb_kind kind, uint64_t handle);
/* A number for a new object; the call fails when there are too many. */
uint64_t cb_new_object(struct cb_call *c, enum cb_kind kind);
void cb_call_cancel(struct cb_call *c);
/* Nobody waits for it. `data` travels behind it and is free afterwards. */
CUresult cb_call_send_with(struct cb_call *c, const void *data, size_t bytes);
CUresult cb_call_send(struct cb_call *c);
CUresult cb_call_send_now(struct cb_call *c); /* somebody at the other end waits for it */
/* Wait for its answer; the result of the call, or an earlier failure of its context. */
CUresult cb_call_ask(struct cb_call *c);
/* The same, but a failure of the context is left to be told. */
CUresult cb_call_question(struct cb_call *c);
/* As cb_call_ask(), with `data` behind the question (NULL: none), and bulk data of the answer into `bulk` (NULL: none). */
CUresult cb_call_exchange(struct cb_call *c, const void *data, size_t bytes, void *bulk, size_t bulk_bytes);
uint64_t cb_take_word(struct cb_call *c);
void cb_take_bytes(struct cb_call *c, void *into, size_t bytes);
/* A string of the answer; it lives as long as the call. NULL: there is none. */
const char *cb_take_string(struct cb_call *c);
/* So many bytes of the answer; they live as long as the call. NULL: they are not there. */
const uint8_t *cb_take_block(struct cb_call *c, size_t bytes);
bool cb_took_all(const struct cb_call *c);
void cb_call_end(struct cb_call *c); /* after an answer that may be larger than CB_GOT_MAX */

#endif
