/* The servers of a control daemon. */
#ifndef CALABASH_SIM_MPS_SERVERS_H
#define CALABASH_SIM_MPS_SERVERS_H

#include "sim/mps/service.h"

/* The server with this pid; NULL: none. */
struct server *server_of(struct daemon *d, pid_t pid);
struct server *server_for(struct daemon *d, uint32_t uid);
struct server *server_start(struct daemon *d, uint32_t uid);
void server_stop(struct server *v, bool force);

/* State of a server in the node; NULL before it has attached. */
struct sim_mps *server_state(struct daemon *d, const struct server *v);

/* Check which servers have come up (they get the defaults and serve) and which have ended. */
void servers_poll(struct daemon *d);

/* Index of the device that a word names for a server, by its ordinal or a prefix of its UUID; -1: none. */
int device_named(struct daemon *d, const struct sim_mps *m, const char *word);

/* "10G" or "900M"; 0 for other texts. */
uint64_t limit_bytes(const char *text);

#endif
