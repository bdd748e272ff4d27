/* Reading a greeting (wire/greeting.h) from somebody who may be anybody. */
#ifndef CALABASH_REMOTE_WORKER_GREETING_H
#define CALABASH_REMOTE_WORKER_GREETING_H

#include "remote/wire/greeting.h"
#include "remote/wire/stream.h"

struct cb_guest {
    int fd, passed; /* the connection, and what came with the greeting; -1: nothing */
    size_t got;
    struct cb_greeting greeting;
};

enum cb_greeting_progress { CB_GREETING_MORE, CB_GREETING_WHOLE, CB_GREETING_LEFT };

/* Take what has arrived, without waiting. `why` is set where it is no greeting (CB_GREETING_LEFT). */
enum cb_greeting_progress cb_greeting_take(struct cb_guest *g, enum cb_greeting_status *why);
/* Wait a while for all of it; false when it does not come or is none, and that was answered. */
bool cb_greeting_await(struct cb_guest *g, int timeout_ms);
void cb_greeting_answer(int fd, enum cb_greeting_status status);
/* The program's way to us, for a LOCAL greeting; kind NULL: what came with it is not what it should be. */
struct cb_stream cb_greeting_stream(const struct cb_guest *g);

#endif
