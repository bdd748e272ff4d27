/*
 * nvidia-cuda-mps-server: a program with a context on each device that it was given. The control daemon starts it,
 * fills in what it gives to clients, and lets it serve. It notes who comes and goes; after a fatal fault it takes
 * nobody until all that were hit have gone, and then serves again.
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

#define LOOK_MS    20
#define CONTROL_FD 3

static struct sim sim = {.fd = -1, .slot = -1};
static uint32_t seen[SIM_PROCS_MAX]; /* generation of the client in each slot that was logged; 0: none */
static int seen_pid[SIM_PROCS_MAX];
static uint32_t faults_seen;

static int fail(const char *what, int result)
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

static int own_slot(void)
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

/* A context on every device. 0, or the exit status. */
static int open_devices(uint32_t uid)
{
    uint8_t devices[SIM_DEVICES_MAX];
    int count = 0, result = (int)cuInit(0);
    if (result != CUDA_SUCCESS) return fail("the driver does not start", result);
    cuDeviceGetCount(&count);
    if (sim_open(&sim, NULL) != 0) return fail("the node cannot be opened", 0);
    for (int i = 0; i < count && i < (int)SIM_DEVICES_MAX; i++) {
        CUcontext context;
        int index = node_index(i);
        result = (int)cuDevicePrimaryCtxRetain(&context, i);
        if (index < 0 || result != CUDA_SUCCESS) return fail("a device gives no context", result);
        devices[i] = (uint8_t)index;
    }
    sim.slot = own_slot();
    if (sim.slot < 0) return fail("the node does not know this process", 0);
    sim_mps_serve(&sim, devices, (uint32_t)count, uid);
    return 0;
}

static void note_clients(void)
{
    struct sim_node *n = sim.node;
    for (uint32_t i = 0; i < sim_procs_used(n); i++) {
        uint32_t now = sim_mps_is_client(n, i, (uint32_t)sim.slot) ? n->proc[i].generation : 0;
        if (now == seen[i]) continue;
        if (seen[i]) log_line("Client %d disconnected", seen_pid[i]);
        seen[i] = now;
        if (!now) continue;
        seen_pid[i] = sim_process_pid(&sim, i);
        if (seen_pid[i] == 0) seen_pid[i] = (int)n->proc[i].pid; /* it has died since: as it called itself */
        log_line("New client %d connected", seen_pid[i]);
        log_line("Status of client {%u, %d} is ACTIVE", n->proc[i].mps.id, seen_pid[i]);
    }
}

static uint32_t hit_clients(bool tell)
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

static void note_fault(struct sim_mps *m)
{
    if (m->fault_count != faults_seen) {
        uint32_t slot = m->fault_slot % SIM_PROCS_MAX;
        const char *uuid = sim.node->device[m->fault_device % SIM_DEVICES_MAX].profile.uuid;
        faults_seen = m->fault_count;
        /* it may have come and gone between two looks */
        int pid = seen[slot] ? seen_pid[slot] : (int)m->fault_pid;
        log_line("Client {%u, %d} encountered a fatal fault on device %s", sim.node->proc[slot].mps.id, pid,
                 uuid);
        hit_clients(true);
        log_line("Server is in FAULT state: no new client until all that were hit have exited");
    }
    if (m->status != SIM_MPS_FAULT || hit_clients(false) > 0) return;
    __atomic_store_n(&m->status, SIM_MPS_ACTIVE, __ATOMIC_RELEASE);
    log_line("Server has recovered: its contexts are new, it is ACTIVE");
}

/* Until the control daemon has gone and the last client with it. */
static void serve(void)
{
    struct sim_mps *m = &sim.node->proc[sim.slot].mps;
    struct pollfd control = {.fd = CONTROL_FD, .events = POLLIN};
    bool orphan = false;
    while (!orphan || sim_mps_clients(sim.node, (uint32_t)sim.slot) > 0) {
        if (orphan)
            usleep(LOOK_MS * 1000);
        else if (poll(&control, 1, LOOK_MS) < 0 && errno != EINTR)
            return;
        if (control.revents & (POLLHUP | POLLERR | POLLNVAL)) orphan = true;
        sim_sweep(&sim, (uint64_t)LOOK_MS * 1000000ull);
        note_clients();
        note_fault(m);
    }
}

int main(int argc, char **argv)
{
    uint32_t uid = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : (uint32_t)getuid();
    signal(SIGPIPE, SIG_IGN);
    log_open("server.log", "Server");
    int result = open_devices(uid);
    if (result != 0) return result;
    log_line("Started: %u device%s, for user %u", sim.node->proc[sim.slot].mps.visible_count,
             sim.node->proc[sim.slot].mps.visible_count == 1 ? "" : "s", uid);
    serve();
    log_line("Exit");
    return 0;
}
