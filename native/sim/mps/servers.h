/* The servers of a control daemon. */
#ifndef CALABASH_SIM_MPS_SERVERS_H
#define CALABASH_SIM_MPS_SERVERS_H

#include "sim/mps/service.h"

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

#endif
