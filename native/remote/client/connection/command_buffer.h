/* The line of outgoing commands. */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_COMMAND_BUFFER_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_COMMAND_BUFFER_H

#include "remote/client/api/base.h"
#include "remote/client/connection/transport.h"

#define LINE_BYTES (256u << 10)

enum cb_state { CB_CLOSED, CB_OPEN, CB_FORKED };

struct line {
    pthread_mutex_t lock;
    struct cb_link link;
    enum cb_state state;
    size_t filled;
    uint32_t seq;
    bool gone; /* the worker is not there any more */
    uint8_t bytes[LINE_BYTES] __attribute__((aligned(64)));
};
extern struct line cb_line;

struct cb_counters { /* of this process, for tests and benchmarks */
    uint64_t commands, questions, sent_bytes, received_bytes;
    uint64_t image_bytes; /* of sent_bytes: code */
};
extern struct cb_counters cb_counters;

/* Send what has gathered. With the lock held. */
bool cb_line_flush(void);

#endif
