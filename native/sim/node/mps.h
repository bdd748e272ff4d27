/*
 * The multi-process service as the cards know it: servers, and clients that run at once.
 *
 * A server is a process of the node with a context on each of its devices; a client is a process that joined it. What
 * a server gives (a share of the multiprocessors, a limit of memory) is taken down by each client as it joins, so a
 * change is for those that come later. The clients of a server share the card by these shares at the same time
 * (engine.h), count as one process for the exclusive compute mode, and have their faults in common: a fatal one of
 * one client is answered to all that are on that device, and the server takes no client until they have gone.
 */
#ifndef CALABASH_SIM_MPS_H
#define CALABASH_SIM_MPS_H

#include "sim/node/state.h"

#define SIM_MPS_WHOLE        1000u /* permille */
#define SIM_MPS_CLIENTS_MAX  48u
#define SIM_MPS_CLIENTS_LESS 16u /* before Volta */

/* What the environment of a server, and of nobody else, says; and how much its context takes. */
#define MPS_SERVER_ENVIRONMENT "CALABASH_SIM_MPS_SERVER"
#define MPS_SERVER_BYTES       (30ull << 20)

/* Results of the driver that the service answers with. */
enum sim_mps_result {
    SIM_MPS_OK = 0,
    SIM_MPS_CONNECTION_FAILED = 805,
    SIM_MPS_RPC_FAILURE = 806,
    SIM_MPS_SERVER_NOT_READY = 807,
    SIM_MPS_MAX_CLIENTS = 808,
    SIM_MPS_CLIENT_TERMINATED = 810,
};

/* The group of a process for the engine, 0 for none; its share of `one` goes to *share. */
uint32_t sim_mps_group(const struct sim_node *n, uint32_t slot, uint32_t one, uint32_t *share);

/* How many of `all` multiprocessors a share is: whole ones, at least one. */
uint32_t sim_mps_multiprocessors(uint32_t all, uint32_t permille);

/* Whether a client's limit lets it hold that many bytes more. The caller holds the device's lock. */
bool sim_mps_allows(const struct sim_proc *p, uint32_t device, uint64_t bytes);

/* Make this process a server; its contexts stand already. */
void sim_mps_serve(struct sim *s, const uint8_t *devices, uint32_t count, uint32_t uid);

/* Make this process a client with at most this share and these limits (0: none of its own). */
enum sim_mps_result sim_mps_join(struct sim *s, uint32_t server, uint32_t generation, uint32_t permille,
                                 const uint64_t *memory_bytes);

/* What every call of this process answers for the sake of the service, SIM_MPS_OK: nothing. */
uint32_t sim_mps_health(const struct sim *s);

/* A client of this server, or of any (UINT32_MAX), lives in this slot. */
bool sim_mps_is_client(const struct sim_node *n, uint32_t slot, uint32_t server);

/* The server in a slot; NULL when there is none. */
struct sim_mps *sim_mps_server(struct sim_node *n, uint32_t slot);

uint32_t sim_mps_clients(const struct sim_node *n, uint32_t server);

/* This client made a fatal fault on a device: whoever is there answers `result` from now on. */
void sim_mps_fault(struct sim *s, uint32_t device, uint32_t result);

/* Whether the exclusive mode of a device lets this process have a context beside that other one. */
bool sim_mps_admits(const struct sim *s, uint32_t other);

#endif
