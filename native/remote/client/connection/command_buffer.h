/* Buffer of outgoing commands, shared by all threads. */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_COMMAND_BUFFER_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_COMMAND_BUFFER_H

#include "remote/client/api/base.h"
#include "remote/client/connection/transport.h"

#define COMMAND_BUFFER_BYTES (256u << 10)

enum cb_state { CB_CLOSED, CB_OPEN, CB_FORKED };

struct line {
    pthread_mutex_t lock;
    struct cb_transport link;
    enum cb_state state;
    size_t filled;
    uint32_t seq;
    bool gone; /* the worker has ended */
    uint8_t bytes[COMMAND_BUFFER_BYTES] __attribute__((aligned(64)));
};
extern struct line cb_command_buffer;

struct cb_counters { /* traffic of this process, for tests and benchmarks */
    uint64_t commands, questions, sent_bytes, received_bytes;
    uint64_t image_bytes; /* of sent_bytes: code */
};
extern struct cb_counters cb_counters;

/* Send what has gathered. Requires the lock. */
bool cb_command_buffer_flush(void);

#endif
