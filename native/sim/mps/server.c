/*
 * nvidia-cuda-mps-server: a program with a context on each of its devices. The control daemon starts it, sets
 * the defaults for its clients, and lets it serve. It logs clients that come and go; after a fatal fault it
 * accepts none until all affected clients have ended, and then serves again.
 */
#include "sim/mps/log.h"
#include "sim/node/mps.h"
#include "sim/node/slot.h"

#include <cuda.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define POLL_MS    20
#define CONTROL_FD 3

static struct sim sim = {.fd = -1, .slot = -1};
static uint32_t seen[SIM_PROCS_MAX]; /* generation of the client in each slot that was logged; 0: none */
static int seen_pid[SIM_PROCS_MAX];
static uint32_t faults_seen;

static int start_failed(const char *what, int result)
{
    log_line("MPS server failed to start: %s (%d)", what, result);
    return 1;
}

static int node_index(CUdevice device)
{
    char bus_id[32], other[32];
    if (cuDeviceGetPCIBusId(bus_id, sizeof bus_id, device) != CUDA_SUCCESS) return -1;
    for (uint32_t i = 0; i < sim.node->device_count; i++) {
        const struct sim_profile *p = &sim.node->device[i].profile;
        snprintf(other, sizeof other, "%04X:%02X:%02X.0", p->pci_domain & 0xFFFF, p->pci_bus & 0xFF,
                 p->pci_device & 0xFF);
        if (strcasecmp(bus_id, other) == 0) return (int)i;
    }
    return -1;
}

static int own_slot_find(void)
{
    struct stat st;
    uint64_t here = stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
    for (uint32_t i = 0; i < sim_procs_used(sim.node); i++) {
        const struct sim_proc *p = &sim.node->proc[i];
        if (p->state == SIM_SLOT_LIVE && p->pid == (uint64_t)getpid() && p->pid_namespace == here)
            return (int)i;
    }
    return -1;
}

/* Make a context on every device. Return 0, or the exit status. */
static int contexts_open(uint32_t uid)
{
    uint8_t devices[SIM_DEVICES_MAX];
    int count = 0, result = (int)cuInit(0);
    if (result != CUDA_SUCCESS) return start_failed("the driver does not start", result);
    cuDeviceGetCount(&count);
    if (sim_open(&sim, NULL) != 0) return start_failed("the node cannot be opened", 0);
    for (int i = 0; i < count && i < (int)SIM_DEVICES_MAX; i++) {
        CUcontext context;
        int index = node_index(i);
        result = (int)cuDevicePrimaryCtxRetain(&context, i);
        if (index < 0 || result != CUDA_SUCCESS) return start_failed("a device gives no context", result);
        devices[i] = (uint8_t)index;
    }
    sim.slot = own_slot_find();
    if (sim.slot < 0) return start_failed("the node does not know this process", 0);
    sim_mps_serve(&sim, devices, (uint32_t)count, uid);
    return 0;
}

static void clients_log(void)
{
    struct sim_node *n = sim.node;
    for (uint32_t i = 0; i < sim_procs_used(n); i++) {
        uint32_t now = sim_mps_is_client(n, i, (uint32_t)sim.slot) ? n->proc[i].generation : 0;
        if (now == seen[i]) continue;
        if (seen[i]) log_line("Client %d disconnected", seen_pid[i]);
        seen[i] = now;
        if (!now) continue;
        seen_pid[i] = sim_process_pid(&sim, i);
        /* it has died since: its PID in its own namespace */
        if (seen_pid[i] == 0) seen_pid[i] = (int)n->proc[i].pid;
        log_line("New client %d connected", seen_pid[i]);
        log_line("Status of client {%u, %d} is ACTIVE", n->proc[i].mps.id, seen_pid[i]);
    }
}

static uint32_t affected_clients(bool tell)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < sim_procs_used(sim.node); i++) {
        const struct sim_mps *m = &sim.node->proc[i].mps;
        if (!sim_mps_is_client(sim.node, i, (uint32_t)sim.slot) || m->result == 0 ||
            m->result == SIM_MPS_CLIENT_TERMINATED)
            continue;
        count++;
        if (tell) log_line("Status of client {%u, %d} is FAULT", m->id, seen_pid[i]);
    }
    return count;
}

static void fault_log(struct sim_mps *m)
{
    if (m->fault_count != faults_seen) {
        uint32_t slot = m->fault_slot % SIM_PROCS_MAX;
        const char *uuid = sim.node->device[m->fault_device % SIM_DEVICES_MAX].profile.uuid;
        faults_seen = m->fault_count;
        /* it may have come and gone between two polls */
        int pid = seen[slot] ? seen_pid[slot] : (int)m->fault_pid;
        log_line("Client {%u, %d} encountered a fatal fault on device %s", sim.node->proc[slot].mps.id, pid,
                 uuid);
        affected_clients(true);
        log_line("Server is in FAULT state: no new client until all that were hit have exited");
    }
    if (m->status != SIM_MPS_FAULT || affected_clients(false) > 0) return;
    __atomic_store_n(&m->status, SIM_MPS_ACTIVE, __ATOMIC_RELEASE);
    log_line("Server has recovered: its contexts are new, it is ACTIVE");
}

/* Serve until the control daemon and the last client have ended. */
static void clients_serve(void)
{
    struct sim_mps *m = &sim.node->proc[sim.slot].mps;
    struct pollfd control = {.fd = CONTROL_FD, .events = POLLIN};
    bool orphan = false;
    while (!orphan || sim_mps_clients(sim.node, (uint32_t)sim.slot) > 0) {
        if (orphan)
            usleep(POLL_MS * 1000);
        else if (poll(&control, 1, POLL_MS) < 0 && errno != EINTR)
            return;
        if (control.revents & (POLLHUP | POLLERR | POLLNVAL)) orphan = true;
        sim_sweep(&sim, (uint64_t)POLL_MS * 1000000ull);
        clients_log();
        fault_log(m);
    }
}

int main(int argc, char **argv)
{
    uint32_t uid = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : (uint32_t)getuid();
    signal(SIGPIPE, SIG_IGN);
    log_open("server.log", "Server");
    int result = contexts_open(uid);
    if (result != 0) return result;
    log_line("Started: %u device%s, for user %u", sim.node->proc[sim.slot].mps.visible_count,
             sim.node->proc[sim.slot].mps.visible_count == 1 ? "" : "s", uid);
    clients_serve();
    log_line("Exit");
    return 0;
}
