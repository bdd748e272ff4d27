/*
 * Answers of the worker: each is given to the waiting call of its number, in whatever order they come. A thread
 * that waits for an answer reads for all.
 */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_ANSWERS_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_ANSWERS_H

#include "remote/client/api/base.h"
#include "remote/wire/frame.h"

#define CB_GOT_MAX 512

struct cb_answer {
    uint32_t seq; /* of the question */
    bool done;
    CUresult result;
    uint8_t *got;
    size_t got_bytes;
    uint8_t small[CB_GOT_MAX];
    /* bulk data: its destination, and how much is still to come */
    uint8_t *bulk;
    size_t bulk_left;
    struct cb_answer *next;
};

/* Register before the question is sent. */
void cb_answer_expect(struct cb_answer *a);
CUresult cb_answer_await(struct cb_answer *a);
/* Read what has come, if no other thread is reading. */
void cb_answers_poll(void);
/* The connection is lost: wake all waiting threads with an error. */
void cb_answers_lost(void);
void cb_answers_after_fork(void); /* in a child: no thread waits */

/* ---- notices, which answer no question ---- */

/*
 * Called by the reading thread, which must not wait for anything else; return false if the notice is not for
 * this taker.
 */
typedef bool cb_notice_taker(const struct cb_frame *f);
void cb_notice_register(uint16_t op, cb_notice_taker *take);
/* For takers: read the next bytes of the payload. */
bool cb_notice_receive(void *into, size_t bytes);

#endif
