/* cuInit: opening the node, taking a slot in it, and choosing the devices that this process sees. */
#include "sim/cuda/context/context.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/memory/memory_pool.h"
#include "sim/cuda/process/call.h"
#include "sim/cuda/process/mps_client.h"
#include "sim/cuda/process/process.h"
#include "sim/node/mig.h"
#include "sim/node/slot.h"
#include "sim/node/state.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static void process_after_fork(void)
{
    if (!process.ready) return;
    sim_detach_after_fork(&process.sim);
    process.ready = false;
    process.forked = true;
}

/* ---- visible devices ---- */

struct choice {
    uint32_t index;
    int instance;            /* index of the GPU instance, or -1 */
    const struct sim_ci *ci; /* of a MIG device */
};

static int compare_pci(const void *a, const void *b)
{
    const struct sim_device *d = process.sim.node->device;
    const struct sim_profile *x = &d[*(const uint32_t *)a].profile, *y = &d[*(const uint32_t *)b].profile;
    if (x->pci_domain != y->pci_domain) return x->pci_domain < y->pci_domain ? -1 : 1;
    if (x->pci_bus != y->pci_bus) return x->pci_bus < y->pci_bus ? -1 : 1;
    return (x->pci_device > y->pci_device) - (x->pci_device < y->pci_device);
}

static int compare_speed(const void *a, const void *b)
{
    const struct sim_device *d = process.sim.node->device;
    const struct sim_profile *x = &d[*(const uint32_t *)a].profile, *y = &d[*(const uint32_t *)b].profile;
    if (x->flops_fp32 != y->flops_fp32) return x->flops_fp32 > y->flops_fp32 ? -1 : 1;
    return compare_pci(a, b);
}

/* Choose a compute instance, with its GPU instance. */
static bool choose_instance(uint32_t index, const struct sim_ci *ci, struct choice *c)
{
    const struct sim_mig *m = &process.sim.node->device[index].mig;
    for (int g = 0; g < (int)SIM_GI_MAX; g++) {
        if (!m->gi[g].used || m->gi[g].id != ci->gi_id) continue;
        *c = (struct choice){index, g, ci};
        return true;
    }
    return false;
}

/*
 * Choose a card; of a card that MIG has partitioned, its first compute instance, as an enumeration without
 * names does.
 */
static bool choose_whole(uint32_t index, struct choice *c)
{
    const struct sim_device *d = &process.sim.node->device[index];
    *c = (struct choice){index, -1, NULL};
    if (d->faults.lost) return false;
    if (!d->mig.mode) return mps_shows(index, 0, false);
    for (uint32_t i = 0; i < SIM_CI_MAX; i++) {
        if (d->mig.ci[i].used && mps_shows(index, d->mig.ci[i].id, true) &&
            choose_instance(index, &d->mig.ci[i], c))
            return true;
    }
    return false;
}

/* "MIG-GPU-<uuid>/<GPU instance>/<compute instance>", the names of drivers before R470. */
static bool is_old_name(const char *text, size_t length, const struct sim_device *d, const struct sim_ci *ci)
{
    char name[96];
    int size = snprintf(name, sizeof name, "MIG-%s/%u/%u", d->profile.uuid, ci->gi_id, ci->id);
    return size == (int)length && strncasecmp(name, text, length) == 0;
}

static bool choose_by_uuid(const char *text, size_t length, const uint32_t *order, uint32_t count,
                           struct choice *c)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct sim_device *d = &process.sim.node->device[order[i]];
        if (strncasecmp(text, "GPU-", 4) == 0 && strncasecmp(d->profile.uuid, text, length) == 0)
            return choose_whole(order[i], c);
        for (uint32_t k = 0; k < SIM_CI_MAX && strncasecmp(text, "MIG-", 4) == 0; k++) {
            const struct sim_ci *ci = &d->mig.ci[k];
            if (ci->used && (strncasecmp(ci->uuid, text, length) == 0 || is_old_name(text, length, d, ci)))
                return !d->faults.lost && mps_shows(order[i], ci->id, true) &&
                       choose_instance(order[i], ci, c);
        }
    }
    return false;
}

/* Choose the device of the next name in CUDA_VISIBLE_DEVICES; return false if there is none. */
static bool choose_named(const char *text, size_t length, const uint32_t *order, uint32_t count,
                         struct choice *c)
{
    if (length && isdigit((unsigned char)*text)) {
        unsigned long i = strtoul(text, NULL, 10);
        return i < count && choose_whole(order[i], c);
    }
    return length > 4 && choose_by_uuid(text, length, order, count, c);
}

/*
 * Reduce to one MIG device: a process has only one, and no whole card beside it: the first of the chosen ones.
 */
static int choose_single_mig(struct choice *out, int chosen)
{
    for (int i = 0; i < chosen; i++) {
        if (!out[i].ci) continue;
        out[0] = out[i];
        return 1;
    }
    return chosen;
}

/*
 * Choose devices in the order of CUDA_DEVICE_ORDER, limited by CUDA_VISIBLE_DEVICES; the first invalid name
 * ends the list.
 */
static int choose_devices(struct choice *out)
{
    uint32_t order[SIM_DEVICES_MAX], count = process.sim.node->device_count;
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    const char *by = getenv("CUDA_DEVICE_ORDER");
    qsort(order, count, sizeof order[0], by && strcmp(by, "PCI_BUS_ID") == 0 ? compare_pci : compare_speed);
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    int chosen = 0;
    if (!text) {
        for (uint32_t i = 0; i < count; i++)
            chosen += choose_whole(order[i], &out[chosen]);
        return choose_single_mig(out, chosen);
    }
    while (*text && chosen < (int)SIM_DEVICES_MAX) {
        size_t length = strcspn(text, ",");
        while (length && isspace((unsigned char)*text)) {
            text++;
            length--;
        }
        struct choice c;
        bool ok = choose_named(text, length, order, count, &c);
        for (int i = 0; ok && i < chosen; i++) {
            if (out[i].index == c.index && out[i].ci == c.ci) return 0; /* named twice: no devices at all */
        }
        if (!ok) break;
        out[chosen++] = c;
        text += length;
        if (*text == ',') text++;
    }
    return choose_single_mig(out, chosen);
}

/* Parse the bytes of a "MIG-xxxxxxxx-xxxx-..." text. */
static void uuid_parse(const char *text, char *out)
{
    const char *p = text + 4;
    for (int i = 0; i < 16; i++) {
        unsigned int byte = 0;
        if (*p == '-') p++;
        if (sscanf(p, "%2x", &byte) != 1) return;
        out[i] = (char)byte;
        p += 2;
    }
}

static void device_set(int ordinal, const struct choice *c)
{
    struct device *d = &process.device[ordinal];
    memset(d, 0, sizeof *d);
    d->ordinal = ordinal;
    d->index = c->index;
    d->shared = &process.sim.node->device[c->index];
    d->profile = &d->shared->profile;
    d->instance = c->instance;
    d->ci = c->ci;
    d->primary = context_of_primary(d);
    memcpy(d->uuid.bytes, d->shared->profile.uuid_bytes, sizeof d->uuid.bytes);
    if (c->instance >= 0) {
        struct sim_proc_device *p = &process.sim.node->proc[process.sim.slot].device[c->index];
        p->mig_used = 1;
        p->mig_gi_id = (uint32_t)c->instance;
        p->mig_ci_id = c->ci->id;
        p->mig_line = 1 + (uint32_t)(c->ci - d->shared->mig.ci);
        p->mig_born = c->ci->born;
        sim_ci_profile(d->shared, c->ci, &d->part);
        d->profile = &d->part;
        uuid_parse(c->ci->uuid, d->uuid.bytes);
    }
}

static CUresult process_start(void)
{
    static bool registered;
    if (process.forked) return CUDA_ERROR_NOT_INITIALIZED;
    int result = sim_open(&process.sim, NULL);
    if (result == -ENOENT) return CUDA_ERROR_NO_DEVICE;
    if (result != 0) {
        fprintf(stderr, "simulated CUDA: cannot open node %s: %s\n", process.sim.path, strerror(-result));
        return result == -EPROTO ? CUDA_ERROR_SYSTEM_DRIVER_MISMATCH : CUDA_ERROR_SYSTEM_NOT_READY;
    }
    if (sim_attach(&process.sim) != 0) return CUDA_ERROR_SYSTEM_NOT_READY;
    process.generation = process.sim.node->proc[process.sim.slot].generation;
    CUresult joined = mps_connect();
    if (joined != CUDA_SUCCESS) {
        sim_detach(&process.sim);
        return joined;
    }
    struct choice c[SIM_DEVICES_MAX];
    process.device_count = choose_devices(c);
    if (process.device_count == 0) {
        sim_detach(&process.sim);
        return CUDA_ERROR_NO_DEVICE;
    }
    memory_when_full(pools_trim_device);
    for (int i = 0; i < process.device_count; i++)
        device_set(i, &c[i]);
    if (!registered) pthread_atfork(NULL, NULL, process_after_fork);
    registered = true;
    process.ready = true;
    return CUDA_SUCCESS;
}

/*
 * What NVIDIA's driver does and needs to succeed (seen with version 580): writing the names of threads, and
 * listening on a socket by which other processes may ask for its descriptor of nvidia-uvm.
 */
static bool refused(bool failed)
{
    return failed && (errno == EPERM || errno == EACCES);
}

static bool surroundings_permit(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/comm", (int)syscall(SYS_gettid));
    FILE *name = fopen(path, "w");
    if (refused(!name)) return false;
    if (name) fclose(name); /* which leaves the name as it is */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "cuda-uvmfd-sim-%d", (int)getpid());
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (refused(fd < 0)) return false;
    if (fd < 0) return true;
    int on = 1;
    bool may = setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0 &&
               !refused(unlink(address.sun_path) != 0) &&
               !refused(bind(fd, (struct sockaddr *)&address, sizeof address) != 0) &&
               !refused(listen(fd, 1) != 0);
    close(fd);
    return may;
}

EXPORT CUresult cuInit(unsigned int Flags)
{
    if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (process.ready) return CUDA_SUCCESS;
    if (process.forked) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&process.lock);
    CUresult result = process.ready           ? CUDA_SUCCESS
                      : surroundings_permit() ? process_start()
                                              : CUDA_ERROR_NO_DEVICE;
    pthread_mutex_unlock(&process.lock);
    return result;
}

EXPORT CUresult cuDriverGetVersion(int *driverVersion)
{
    if (!driverVersion) return CUDA_ERROR_INVALID_VALUE;
    const char *forced = getenv("CALABASH_SIM_DRIVER");
    int version = forced ? atoi(forced) : 0;
    if (version < 1000) version = process.sim.node ? (int)process.sim.node->driver_cuda : 13000;
    *driverVersion = version;
    return CUDA_SUCCESS;
}
