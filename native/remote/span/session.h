/* The sessions of a span: a copy of the client's library for each server, in this process. */
#ifndef CALABASH_REMOTE_SPAN_SESSION_H
#define CALABASH_REMOTE_SPAN_SESSION_H

#include "remote/client/api/base.h"
#include "remote/client/connection/span_member.h"
#include "remote/wire/span.h"

struct span_session {
    unsigned int member; /* from 1 on */
    void *library;
    const struct cb_session_port *port;
    char *where;
};

extern struct span_session span_sessions[CB_SPAN_MAX];
extern unsigned int span_count;

/*
 * Load them, once; `name` is the file of the client's library, beside this one, and `place` a name of the
 * directory of this process's descriptors that no other library uses. Return false after a message.
 */
bool span_load(const char *name, const char *place);

#endif
