/* The line of outgoing commands; see session.h. Used by session.c and sender.c. */
#ifndef CALABASH_REMOTE_LINE_H
#define CALABASH_REMOTE_LINE_H

#include "remote/client/base.h"
#include "remote/client/link.h"

#define LINE_BYTES (256u << 10)

struct line {
    pthread_mutex_t lock;
    struct cb_link link;
    size_t filled;
    uint32_t seq;
    bool gone; /* the worker is not there any more */
    uint8_t bytes[LINE_BYTES] __attribute__((aligned(64)));
};
extern struct line cb_line;

/* All with the lock held. */
bool cb_line_flush(void);

/* The thread that sends what nobody else has sent. */
bool cb_sender_start(void);
void cb_sender_wake(void);   /* there is something; costs nothing while it is awake */
void cb_sender_forget(void); /* in a child: it has no such thread */

#endif
