/* What a span asks of one of its sessions: a copy of this library, with a state of its own. */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_SPAN_MEMBER_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_SPAN_MEMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cb_session_port {
    size_t bytes; /* of the table */
    /* Before it is opened: it is that one, and its worker is there. The text stays. */
    void (*join)(unsigned int member, const char *where);
    /* Whether memory there was given by this session. */
    bool (*owns)(uint64_t address);
    void *const *address; /* of functions, by enum cb_cuda_function */
};

#endif
