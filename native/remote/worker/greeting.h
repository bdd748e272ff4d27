/* Reading of a greeting (wire/greeting.h) from an untrusted peer. */
#ifndef CALABASH_REMOTE_WORKER_GREETING_H
#define CALABASH_REMOTE_WORKER_GREETING_H

#include "remote/wire/greeting.h"
#include "remote/wire/stream.h"

struct cb_connecting {
    int fd, passed; /* the connection, and the descriptor passed with the greeting; -1: none */
    size_t got;
    struct cb_greeting greeting;
};

enum cb_greeting_progress { CB_GREETING_MORE, CB_GREETING_WHOLE, CB_GREETING_LEFT };

/* Read what has arrived, without waiting. `why` is set if it is not a valid greeting (CB_GREETING_LEFT). */
enum cb_greeting_progress cb_greeting_take(struct cb_connecting *g, enum cb_greeting_status *why);
/* Wait for the whole greeting; return false if it does not come or is invalid, after the refusal was sent. */
bool cb_greeting_await(struct cb_connecting *g, int timeout_ms);
void cb_greeting_answer(int fd, enum cb_greeting_status status);
/* The stream to the program, for a LOCAL greeting; kind NULL: the passed descriptor is not valid. */
struct cb_stream cb_greeting_stream(const struct cb_connecting *g);

#endif
