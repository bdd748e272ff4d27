/*
 * Joining of the multi-process service at cuInit.
 *
 * The control daemon listens on `control` in CUDA_MPS_PIPE_DIRECTORY. If no daemon listens, the program runs
 * without the service, as with the real driver. The daemon's answer names the server, by its slot in the node;
 * the environment of this process can only lower the server's limits.
 */
#include "sim/cuda/process/mps_client.h"

#include "sim/cuda/process/process.h"
#include "sim/node/mps.h"

#include <errno.h>
#include <stdio.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PIPE_DIRECTORY "/tmp/nvidia-mps"
#define MESSAGE_BYTES  256

static int control_connect(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    if (!directory || !*directory) directory = PIPE_DIRECTORY;
    int length = snprintf(a.sun_path, sizeof a.sun_path, "%s/control", directory);
    if (length < 0 || length >= (int)sizeof a.sun_path) return -1;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    close(fd);
    return -1;
}

/* Percentage such as "30" or "12.5"; the whole card if it is not valid. */
static uint32_t share_from_environment(void)
{
    const char *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    char *end;
    double percent = text ? strtod(text, &end) : 0.0;
    if (!text || end == text || *end || !(percent > 0.0 && percent <= 100.0)) return SIM_MPS_WHOLE;
    uint32_t permille = (uint32_t)(percent * 10.0 + 0.5);
    return permille > 0 ? permille : 1;
}

static int device_by_name(const struct sim_mps *server, const char *name, size_t length)
{
    char *end;
    unsigned long ordinal = strtoul(name, &end, 10);
    if (end == name + length) return ordinal < server->visible_count ? server->visible[ordinal] : -1;
    for (uint32_t i = 0; i < server->visible_count && length > 4; i++) {
        if (strncasecmp(process.sim.node->device[server->visible[i]].profile.uuid, name, length) == 0)
            return server->visible[i];
    }
    return -1;
}

/*
 * "0=1G,1=512M", devices by ordinal or UUID. As with the real driver, an unknown device invalidates the whole
 * list.
 */
static void limits_from_environment(const struct sim_mps *server, uint64_t *bytes)
{
    const char *text = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    while (text && *text) {
        size_t length = strcspn(text, ",");
        const char *equals = memchr(text, '=', length);
        char *end;
        int device = equals ? device_by_name(server, text, (size_t)(equals - text)) : -1;
        unsigned long long amount = equals ? strtoull(equals + 1, &end, 10) : 0;
        if (device < 0 || amount == 0 || amount > 1u << 20 || (*end != 'G' && *end != 'M')) {
            memset(bytes, 0, SIM_DEVICES_MAX * sizeof *bytes);
            return;
        }
        bytes[device] = amount << (*end == 'G' ? 30 : 20);
        text += length + (text[length] == ',');
    }
}

/* Parse the daemon's answer, "server SLOT GENERATION DEVICE INODE" or "error RESULT", and join. */
static CUresult server_join(const char *answer)
{
    unsigned int slot, generation, result;
    unsigned long long device, inode;
    uint64_t limits[SIM_DEVICES_MAX] = {0};
    if (sscanf(answer, "error %u", &result) == 1) return (CUresult)result;
    if (sscanf(answer, "server %u %u %llu %llu", &slot, &generation, &device, &inode) != 4)
        return CUDA_ERROR_MPS_CONNECTION_FAILED;
    if (device != process.sim.file_device || inode != process.sim.file_inode)
        return CUDA_SUCCESS; /* a server of another node */
    const struct sim_mps *server = sim_mps_server(process.sim.node, slot);
    if (!server) return CUDA_ERROR_MPS_CONNECTION_FAILED;
    limits_from_environment(server, limits);
    return (CUresult)sim_mps_join(&process.sim, slot, generation, share_from_environment(), limits);
}

CUresult mps_connect(void)
{
    char message[MESSAGE_BYTES];
    ssize_t got = -1;
    if (getenv(MPS_SERVER_ENVIRONMENT)) return CUDA_SUCCESS;
    int fd = control_connect();
    if (fd < 0) return CUDA_SUCCESS;
    int length = snprintf(message, sizeof message, "client %d", process.sim.slot);
    if (send(fd, message, (size_t)length, MSG_NOSIGNAL) == length) {
        do
            got = recv(fd, message, sizeof message - 1, 0);
        while (got < 0 && errno == EINTR);
    }
    close(fd);
    if (got <= 0) return CUDA_ERROR_MPS_CONNECTION_FAILED;
    message[got] = 0;
    return server_join(message);
}

bool mps_shows(uint32_t index, uint32_t ci_id, bool divided)
{
    const struct sim_node *n = process.sim.node;
    const struct sim_mps *m = &n->proc[process.sim.slot].mps;
    const struct sim_mps *of = m->role == SIM_MPS_CLIENT ? &n->proc[m->server % SIM_PROCS_MAX].mps : NULL;
    for (uint32_t i = 0; of && i < of->visible_count; i++) {
        if (of->visible[i] != index) continue;
        const struct sim_proc_device *d = &n->proc[m->server % SIM_PROCS_MAX].device[index];
        return !divided || !d->mig_used || d->mig_ci_id == ci_id;
    }
    return of == NULL;
}
