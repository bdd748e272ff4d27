/*
 * The multi-process service as the cards see it: servers, and clients that run at once.
 *
 * A server is a process of the node with a context on each of its devices; a client is a process that joined
 * it. Each client copies the server's settings (a share of the multiprocessors, a limit of memory) as it joins,
 * so a change applies to later clients. The clients of a server share the card by these shares at the same time
 * (engine.h), count as one process for the exclusive compute mode, and share faults: a fatal fault of one
 * client is returned to all clients on that device, and the server accepts no client until they have ended.
 */
#ifndef CALABASH_SIM_MPS_H
#define CALABASH_SIM_MPS_H

#include "sim/node/state.h"

#define SIM_MPS_WHOLE        1000u /* permille */
#define SIM_MPS_CLIENTS_MAX  48u
#define SIM_MPS_CLIENTS_LESS 16u /* before Volta */

/* Variable in the environment of a server only; and the size of its context. */
#define MPS_SERVER_ENVIRONMENT "CALABASH_SIM_MPS_SERVER"
#define MPS_SERVER_BYTES       (30ull << 20)

/* Driver results that the service answers with. */
enum sim_mps_result {
    SIM_MPS_OK = 0,
    SIM_MPS_CONNECTION_FAILED = 805,
    SIM_MPS_RPC_FAILURE = 806,
    SIM_MPS_SERVER_NOT_READY = 807,
    SIM_MPS_MAX_CLIENTS = 808,
    SIM_MPS_CLIENT_TERMINATED = 810,
};

/* Group of a process for the engine, 0 for none; its share of `one` goes to *share. */
uint32_t sim_mps_group(const struct sim_node *n, uint32_t slot, uint32_t one, uint32_t *share);

/* Number of multiprocessors of a share of `all`: whole ones, at least one. */
uint32_t sim_mps_multiprocessors(uint32_t all, uint32_t permille);

/* Return true if a client's limit permits that many more bytes. Requires the device's lock. */
bool sim_mps_allows(const struct sim_proc *p, uint32_t device, uint64_t bytes);

/* Make this process a server; its contexts exist already. */
void sim_mps_serve(struct sim *s, const uint8_t *devices, uint32_t count, uint32_t uid);

/* Make this process a client with at most this share and these limits (0: no limit). */
enum sim_mps_result sim_mps_join(struct sim *s, uint32_t server, uint32_t generation, uint32_t permille,
                                 const uint64_t *memory_bytes);

/* Result that every call of this process must return because of the service; SIM_MPS_OK: none. */
uint32_t sim_mps_health(const struct sim *s);

/* Return true if a client of this server, or of any (UINT32_MAX), lives in this slot. */
bool sim_mps_is_client(const struct sim_node *n, uint32_t slot, uint32_t server);

/* The server in a slot; NULL: none. */
struct sim_mps *sim_mps_server(struct sim_node *n, uint32_t slot);

uint32_t sim_mps_clients(const struct sim_node *n, uint32_t server);

/* Record a fatal fault of this client on a device: all clients there return `result` from now on. */
void sim_mps_fault(struct sim *s, uint32_t device, uint32_t result);

/* Return true if the exclusive mode of a device permits this process a context beside that other one. */
bool sim_mps_admits(const struct sim *s, uint32_t other);

#endif
