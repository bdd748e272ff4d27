/*
 * State of the control daemon: one socket for programs that ask for their server and for users' commands, the
 * servers that it has started, and the waiting clients. One thread.
 */
#ifndef CALABASH_SIM_MPS_SERVICE_H
#define CALABASH_SIM_MPS_SERVICE_H

#include "sim/node/state.h"

#define SERVERS_MAX   16u
#define WAITERS_MAX   256u
#define REPLY_BYTES   65536u
#define MESSAGE_BYTES 1024u
#define EVERYBODY     UINT32_MAX /* the uid of a server for all users */

struct server {
    pid_t pid; /* 0: this place is free */
    uint32_t uid;
    int pipe; /* closed: the server has no daemon any more */
    int slot; /* -1: not attached to the node yet */
    bool leaving;
};

/* Kinds of waiters: a program for its server, or a user until servers have ended. */
enum waits { WAITS_FOR_SERVER, WAITS_FOR_END_OF, WAITS_FOR_END };

struct waiter {
    int fd; /* -1: this place is free */
    enum waits waits;
    uint32_t uid;
    pid_t server;
    uint64_t until_ns; /* then servers are ended by force; 0: never */
};

struct limit { /* a default limit, by the name of its device */
    char device[64];
    char value[16];
};

struct daemon {
    struct sim sim;
    int listener;
    bool multiuser, quitting;
    char directory[96];
    uint32_t permille; /* the default of servers */
    uint32_t priority;
    struct limit limit[SIM_DEVICES_MAX];
    uint32_t limit_count;
    struct server server[SERVERS_MAX];
    struct waiter waiter[WAITERS_MAX];
};

#endif
