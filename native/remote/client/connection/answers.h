/*
 * Answers: each goes to the question of its number, in whatever order they come. They are read by whoever waits for one.
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
    /* bulk data: where it goes, and how much is still to come */
    uint8_t *bulk;
    size_t bulk_left;
    struct cb_answer *next;
};

/* Before the question is sent. */
void cb_answer_expect(struct cb_answer *a);
CUresult cb_answer_await(struct cb_answer *a);
/* Take what has come, if nobody else is about it. */
void cb_answers_look(void);
/* The connection is lost: everybody who waits is told. */
void cb_answers_lost(void);
void cb_answers_forget(void); /* in a child: nobody waits */

/* ---- notices, which nobody has asked for ---- */

/* By the thread that reads, which must not wait for anything else; false: it is none of ours. */
typedef bool cb_notice_taker(const struct cb_frame *f);
void cb_notice_register(uint16_t op, cb_notice_taker *take);
/* For takers: the next bytes of the payload. */
bool cb_notice_receive(void *into, size_t bytes);

#endif
