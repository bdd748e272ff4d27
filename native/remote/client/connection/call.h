/*
 * A forwarded call: begun, filled, and sent or asked. Between its begin and its end it holds the command
 * buffer, so that commands of all threads have one order. Commands gather in the buffer: it is sent by a call
 * that waits for an answer, when it is full, or after some microseconds by the sender thread.
 */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_CALL_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_CALL_H

#include "remote/client/api/base.h"
#include "remote/client/connection/answers.h"
#include "remote/wire/frame.h"
#include "remote/wire/objects.h"
#include "remote_ops.h"

/*
 * Requirement for the current context: any or none, a living one, or any or none but not one that was
 * destroyed.
 */
enum cb_where { CB_ANYWHERE, CB_IN_CONTEXT, CB_NOT_IN_DEAD };

struct cb_call {
    uint8_t *frame, *at, *end;
    CUresult failed;
    size_t taken; /* bytes of the answer that were taken */
    struct cb_answer answer;
};

/* Number of this thread's last question. */
extern __thread uint32_t cb_asked_seq;

bool cb_session_ready(void); /* cuInit has succeeded in this very process */

/*
 * Called before a command that may use memory, and after an answer which means that the program may read what
 * devices wrote; NULL: not needed.
 */
extern void (*cb_before_command)(enum cb_op op);
extern void (*cb_after_wait)(enum cb_op op);

CUresult cb_call_begin(struct cb_call *c, enum cb_op op, enum cb_where where);
/* The same, whatever the state of the session is. */
CUresult cb_call_begin_as(struct cb_call *c, enum cb_op op, uint16_t context);
void cb_put_word(struct cb_call *c, uint64_t v);
void cb_put_bytes(struct cb_call *c, const void *data, size_t bytes);
void cb_put_string(struct cb_call *c, const char *text);
void cb_put_handle(struct cb_call *c, enum cb_kind kind, uint64_t handle);
/* Number for a new object; the call fails if there are too many. */
uint64_t cb_new_object(struct cb_call *c, enum cb_kind kind);
/* Send without an answer. `data` travels behind it and may be reused afterwards. */
CUresult cb_call_send_with(struct cb_call *c, const void *data, size_t bytes);
CUresult cb_call_send(struct cb_call *c);
CUresult cb_call_send_now(struct cb_call *c); /* send at once: the other end is waiting for it */
/* Wait for the answer; return the result of the call, or an earlier failure of its context. */
CUresult cb_call_ask(struct cb_call *c);
/* The same, but leave a failure of the context to be returned by a later call. */
CUresult cb_call_question(struct cb_call *c);
/*
 * As cb_call_ask(), with `data` behind the question (NULL: none), and bulk data of the answer into `bulk`
 * (NULL: none).
 */
CUresult cb_call_exchange(struct cb_call *c, const void *data, size_t bytes, void *bulk, size_t bulk_bytes);
uint64_t cb_take_word(struct cb_call *c);
void cb_take_bytes(struct cb_call *c, void *into, size_t bytes);
/* A string of the answer, valid as long as the call. NULL: absent. */
const char *cb_take_string(struct cb_call *c);
/* So many bytes of the answer, valid as long as the call. NULL: absent. */
const uint8_t *cb_take_block(struct cb_call *c, size_t bytes);
bool cb_took_all(const struct cb_call *c);
void cb_call_end(struct cb_call *c); /* required after an answer that may be larger than CB_GOT_MAX */

#endif
