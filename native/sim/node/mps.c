/* Servers and clients of the multi-process service; mps.h has the theory. */
#include "sim/node/mps.h"

#include <string.h>

struct sim_mps *sim_mps_server(struct sim_node *n, uint32_t slot)
{
    if (slot >= SIM_PROCS_MAX) return NULL;
    struct sim_proc *p = &n->proc[slot];
    bool serves =
        __atomic_load_n(&p->state, __ATOMIC_ACQUIRE) == SIM_SLOT_LIVE && p->mps.role == SIM_MPS_SERVER;
    return serves ? &p->mps : NULL;
}

bool sim_mps_is_client(const struct sim_node *n, uint32_t slot, uint32_t server)
{
    const struct sim_proc *p = &n->proc[slot % SIM_PROCS_MAX];
    if (__atomic_load_n(&p->state, __ATOMIC_ACQUIRE) != SIM_SLOT_LIVE || p->mps.role != SIM_MPS_CLIENT)
        return false;
    if (server == UINT32_MAX) return true;
    return p->mps.server == server && p->mps.server_generation == n->proc[server % SIM_PROCS_MAX].generation;
}

uint32_t sim_mps_clients(const struct sim_node *n, uint32_t server)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < sim_procs_used(n); i++)
        count += sim_mps_is_client(n, i, server);
    return count;
}

uint32_t sim_mps_group(const struct sim_node *n, uint32_t slot, uint32_t one, uint32_t *share)
{
    const struct sim_mps *m = &n->proc[slot % SIM_PROCS_MAX].mps;
    *share = one;
    if (m->role != SIM_MPS_CLIENT) return 0;
    *share = (uint32_t)((uint64_t)one * m->permille / SIM_MPS_WHOLE);
    return 1 + m->server;
}

uint32_t sim_mps_multiprocessors(uint32_t all, uint32_t permille)
{
    uint32_t count = (uint32_t)((uint64_t)all * permille / SIM_MPS_WHOLE);
    return count > 0 ? count : 1;
}

bool sim_mps_allows(const struct sim_proc *p, uint32_t device, uint64_t bytes)
{
    uint64_t limit = p->mps.role == SIM_MPS_CLIENT ? p->mps.memory_bytes[device] : 0;
    uint64_t held = p->device[device].alloc_bytes + p->device[device].context_bytes;
    return limit == 0 || (held <= limit && bytes <= limit - held);
}

void sim_mps_serve(struct sim *s, const uint8_t *devices, uint32_t count, uint32_t uid)
{
    struct sim_node *n = s->node;
    struct sim_mps *m = &n->proc[s->slot].mps;
    sim_lock_node(s);
    memset(m, 0, sizeof *m);
    m->uid = uid;
    m->permille = SIM_MPS_WHOLE;
    m->clients_max = SIM_MPS_CLIENTS_MAX;
    for (uint32_t i = 0; i < count && i < SIM_DEVICES_MAX; i++) {
        m->visible[m->visible_count++] = devices[i];
        if (n->device[devices[i] % SIM_DEVICES_MAX].profile.compute_major < 7)
            m->clients_max = SIM_MPS_CLIENTS_LESS;
    }
    __atomic_store_n(&m->role, SIM_MPS_SERVER, __ATOMIC_RELEASE);
    sim_unlock_node(s);
}

static uint64_t smaller_limit(uint64_t a, uint64_t b)
{
    if (a == 0 || b == 0) return a ? a : b;
    return a < b ? a : b;
}

enum sim_mps_result sim_mps_join(struct sim *s, uint32_t server, uint32_t generation, uint32_t permille,
                                 const uint64_t *memory_bytes)
{
    struct sim_node *n = s->node;
    enum sim_mps_result result = SIM_MPS_OK;
    sim_lock_node(s);
    struct sim_mps *of = sim_mps_server(n, server), *m = &n->proc[s->slot].mps;
    if (!of || n->proc[server].generation != generation) {
        result = SIM_MPS_CONNECTION_FAILED;
    } else if (of->status != SIM_MPS_ACTIVE) {
        result = SIM_MPS_SERVER_NOT_READY;
    } else if (sim_mps_clients(n, server) >= of->clients_max) {
        result = SIM_MPS_MAX_CLIENTS;
    } else {
        memset(m, 0, sizeof *m);
        m->server = server;
        m->server_generation = generation;
        m->permille = permille < of->permille ? permille : of->permille;
        for (uint32_t i = 0; i < SIM_DEVICES_MAX; i++)
            m->memory_bytes[i] = smaller_limit(memory_bytes[i], of->memory_bytes[i]);
        m->id = of->id++;
        __atomic_store_n(&m->role, SIM_MPS_CLIENT, __ATOMIC_RELEASE);
    }
    sim_unlock_node(s);
    return result;
}

uint32_t sim_mps_health(const struct sim *s)
{
    const struct sim_node *n = s->node;
    const struct sim_mps *m = &n->proc[s->slot].mps;
    if (m->role != SIM_MPS_CLIENT) return SIM_MPS_OK;
    uint32_t result = __atomic_load_n(&m->result, __ATOMIC_ACQUIRE);
    if (result) return result;
    const struct sim_proc *of = &n->proc[m->server % SIM_PROCS_MAX];
    bool there = __atomic_load_n(&of->state, __ATOMIC_ACQUIRE) == SIM_SLOT_LIVE &&
                 of->generation == m->server_generation;
    return there ? SIM_MPS_OK : SIM_MPS_RPC_FAILURE;
}

void sim_mps_fault(struct sim *s, uint32_t device, uint32_t result)
{
    struct sim_node *n = s->node;
    sim_lock_node(s);
    struct sim_mps *m = &n->proc[s->slot].mps,
                   *of = m->role == SIM_MPS_CLIENT ? sim_mps_server(n, m->server) : NULL;
    for (uint32_t i = 0; of && i < sim_procs_used(n); i++) {
        struct sim_proc *p = &n->proc[i];
        if (!sim_mps_is_client(n, i, m->server) || p->device[device].context_count == 0) continue;
        if (p->mps.result == 0) __atomic_store_n(&p->mps.result, result, __ATOMIC_RELEASE);
    }
    if (of) {
        of->fault_slot = (uint32_t)s->slot;
        of->fault_pid = (uint32_t)n->proc[s->slot].pid;
        of->fault_device = device;
        of->fault_count++;
        __atomic_store_n(&of->status, SIM_MPS_FAULT, __ATOMIC_RELEASE);
    }
    sim_unlock_node(s);
}

bool sim_mps_admits(const struct sim *s, uint32_t other)
{
    const struct sim_node *n = s->node;
    const struct sim_mps *m = &n->proc[s->slot].mps, *o = &n->proc[other % SIM_PROCS_MAX].mps;
    const struct sim_proc *of = &n->proc[o->server % SIM_PROCS_MAX];
    if (o->role == SIM_MPS_CLIENT && (of->state != SIM_SLOT_LIVE || of->generation != o->server_generation))
        return true; /* its server has ended, and with it the client's limits */
    if (m->role != SIM_MPS_CLIENT) return false;
    return other == m->server || sim_mps_is_client(n, other, m->server);
}
