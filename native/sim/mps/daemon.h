/*
 * The control daemon: one socket on which programs ask for their server and people give commands, and the servers that
 * it has started. One thread.
 */
#ifndef CALABASH_SIM_MPS_DAEMON_H
#define CALABASH_SIM_MPS_DAEMON_H

#include "sim/node/state.h"

#include <stdio.h>

#define SERVERS_MAX   16u
#define WAITERS_MAX   256u
#define REPLY_BYTES   65536u
#define MESSAGE_BYTES 1024u
#define EVERYBODY     UINT32_MAX /* the uid of a server for all users */

struct server {
    pid_t pid; /* 0: this place is free */
    uint32_t uid;
    int pipe; /* closed: the server is an orphan */
    int slot; /* -1: not yet in the node */
    bool leaving;
};

/* Who waits for an answer: a program for its server, or a person until servers have ended. */
enum waits { WAITS_FOR_SERVER, WAITS_FOR_END_OF, WAITS_FOR_END };

struct waiter {
    int fd; /* -1: this place is free */
    enum waits waits;
    uint32_t uid;
    pid_t server;
    uint64_t until_ns; /* then servers are ended by force; 0: never */
};

struct limit { /* a default limit, by the word that named the device */
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

/* Serve until quit. Returns the exit status. */
int daemon_run(struct daemon *d);

/* Take the pipe directory. 0, or the exit status after a message. */
int daemon_open(struct daemon *d);

/* A command of a person: writes the answer. False: it answers later through a waiter. */
bool command_run(struct daemon *d, const char *line, int fd, FILE *out);

/* The server of a pid, NULL when there is none; the one that serves a user; starting one. */
struct server *server_of(struct daemon *d, pid_t pid);
struct server *server_for(struct daemon *d, uint32_t uid);
struct server *server_start(struct daemon *d, uint32_t uid);
void server_stop(struct server *v, bool force);

/* What a server says of itself in the node; NULL before it is there. */
struct sim_mps *server_state(struct daemon *d, const struct server *v);

/* See which have come up (they get the defaults and serve) and which have ended. */
void servers_look(struct daemon *d);

/* The device that a word names for a server: an ordinal or a UUID, perhaps cut short; -1. */
int device_named(struct daemon *d, const struct sim_mps *m, const char *word);

/* "10G" or "900M"; 0 when it is neither. */
uint64_t limit_bytes(const char *text);

bool waiter_add(struct daemon *d, const struct waiter *w);

#endif
