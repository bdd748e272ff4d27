/* Creation and opening of the shared state of a simulated node, and its locks; state.h has the theory. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/node/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIM_XID_DOUBLE_BIT 48u
#define SIM_XID_CONTAINED  94u
#define MIG_FORGOTTEN_FROM 9u /* compute capability from which the MIG mode does not outlive a reboot */

uint64_t sim_realtime(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void sim_read_line(const char *path, char *out, size_t size)
{
    out[0] = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n = read(fd, out, size - 1);
    close(fd);
    out[n > 0 ? n : 0] = 0;
    out[strcspn(out, "\n")] = 0;
}

static void mutex_init(pthread_mutex_t *m)
{
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    memset(m, 0, sizeof *m);
    pthread_mutex_init(m, &a);
    pthread_mutexattr_destroy(&a);
}

/* Reset everything that ends with a reboot: locks, processes, queues, engine time. */
static void reset_dynamic(struct sim_node *n)
{
    mutex_init(&n->lock);
    for (uint32_t i = 0; i < n->device_count; i++) {
        struct sim_device *d = &n->device[i];
        mutex_init(&d->lock);
        d->used_bytes = d->alloc_bytes = d->alloc_peak_bytes = d->used_peak_bytes = 0;
        d->timeslice = 0;
        memset(d->engine.line, 0, sizeof d->engine.line);
        memset(&d->engine.history, 0, sizeof d->engine.history);
        /* on Ampere the MIG mode outlives a reboot; instances never do */
        memset(d->mig.gi, 0, sizeof d->mig.gi);
        memset(d->mig.ci, 0, sizeof d->mig.ci);
        d->mig.mode = d->mig.mode_pending =
            d->mig.mode_pending && d->profile.compute_major < MIG_FORGOTTEN_FROM;
        d->mig.generation++;
    }
    for (uint32_t i = 0; i < sim_procs_used(n); i++) {
        if (n->proc[i].state != SIM_SLOT_FREE) memset(&n->proc[i], 0, sizeof n->proc[i]);
    }
    for (uint32_t i = 0; i < sim_queues_used(n); i++) {
        if (n->queue[i].state != SIM_SLOT_FREE) n->queue[i].state = SIM_SLOT_FREE;
    }
    memset(n->departed, 0, sizeof n->departed);
    for (uint32_t i = 0; i < n->device_count; i++) {
        for (uint32_t k = 0; k < n->managed_high[i]; k++)
            n->managed[i][k].state = SIM_SLOT_FREE;
    }
    n->swept_ns = 0;
    sim_read_line("/proc/sys/kernel/random/boot_id", n->boot_id, sizeof n->boot_id);
}

int sim_create(const char *path, const char *name, const struct sim_device *devices, uint32_t count)
{
    char temporary[4096];
    if (!path || count == 0 || count > SIM_DEVICES_MAX) return -EINVAL;
    if (snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid()) >= (int)sizeof temporary)
        return -ENAMETOOLONG;
    int fd = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return -errno;
    int result = 0;
    struct sim_node *n = MAP_FAILED;
    /* Like the device nodes of a real card, a node is usable by every user who may enter its directory. */
    if (fchmod(fd, 0666) != 0 || ftruncate(fd, sizeof *n) != 0)
        result = -errno;
    else if ((n = mmap(NULL, sizeof *n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        result = -errno;
    if (result == 0) {
        n->version = SIM_VERSION;
        n->device_count = count;
        n->size_bytes = sizeof *n;
        n->driver_cuda = 13000;
        snprintf(n->driver_version, sizeof n->driver_version, SIM_DRIVER_VERSION);
        snprintf(n->nvml_version, sizeof n->nvml_version, "13." SIM_DRIVER_VERSION);
        snprintf(n->name, sizeof n->name, "%s", name ? name : "sim");
        n->created_ns = sim_realtime();
        for (uint32_t i = 0; i < count; i++) {
            struct sim_device *d = &n->device[i];
            d->profile = devices[i].profile;
            d->faults = devices[i].faults;
            d->mig = devices[i].mig;
            d->persistence_mode = devices[i].persistence_mode;
            d->compute_mode = devices[i].compute_mode;
            d->ecc_mode = devices[i].ecc_mode;
            d->ecc_mode_pending = devices[i].ecc_mode_pending;
        }
        reset_dynamic(n);
        n->magic = SIM_MAGIC;
        if (rename(temporary, path) != 0) result = -errno;
    }
    if (n != MAP_FAILED) munmap(n, sizeof *n);
    close(fd);
    if (result != 0) unlink(temporary);
    return result;
}

/*
 * Reset the dynamic part after a reboot. A process that cannot read the boot ID, because its /proc is not the
 * kernel's (that of a node's root, for example), resets nothing.
 */
static void boot_check(struct sim_node *n, int fd)
{
    char boot[40];
    sim_read_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    if (boot[0] == 0 || strcmp(boot, n->boot_id) == 0) return;
    while (flock(fd, LOCK_EX) != 0 && errno == EINTR)
        ;
    if (strcmp(boot, n->boot_id) != 0) reset_dynamic(n);
    flock(fd, LOCK_UN);
}

int sim_open(struct sim *s, const char *path)
{
    struct stat st;
    memset(s, 0, sizeof *s);
    s->slot = -1;
    s->fd = -1;
    if (!path) path = getenv("CALABASH_SIM");
    if (!path || !*path) return -ENOENT;
    if (snprintf(s->path, sizeof s->path, "%s", path) >= (int)sizeof s->path) return -ENAMETOOLONG;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return -errno;
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size < sizeof(struct sim_node)) {
        close(fd);
        return -EPROTO;
    }
    struct sim_node *n = mmap(NULL, sizeof *n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (n == MAP_FAILED) {
        int result = -errno;
        close(fd);
        return result;
    }
    if (n->magic != SIM_MAGIC || n->version != SIM_VERSION || n->size_bytes != sizeof *n ||
        n->device_count == 0 || n->device_count > SIM_DEVICES_MAX) {
        munmap(n, sizeof *n);
        close(fd);
        return -EPROTO;
    }
    boot_check(n, fd);
    s->node = n;
    s->fd = fd;
    s->file_device = st.st_dev;
    s->file_inode = st.st_ino;
    return 0;
}

/* Totals are sums over the process table. */
void sim_recount(struct sim_node *n, uint32_t device)
{
    uint64_t alloc = 0, context = 0, instance[SIM_GI_MAX] = {0};
    for (uint32_t i = 0; i < sim_procs_used(n); i++) {
        const struct sim_proc_device *p = &n->proc[i].device[device];
        if (n->proc[i].state != SIM_SLOT_LIVE) continue;
        alloc += p->alloc_bytes;
        context += p->context_bytes;
        if (p->mig_used && p->mig_gi_id < SIM_GI_MAX)
            instance[p->mig_gi_id] += p->alloc_bytes + p->context_bytes;
    }
    struct sim_device *d = &n->device[device];
    for (uint32_t i = 0; i < SIM_GI_MAX; i++)
        d->mig.gi[i].used_bytes = instance[i];
    d->alloc_bytes = alloc;
    d->used_bytes = alloc + context;
}

/* Rebuild the lists of a device's queues from the queues themselves: their writer may have died half-way. */
static void queue_lists_rebuild(struct sim_node *n, uint32_t device)
{
    struct sim_engine *e = &n->device[device].engine;
    for (uint32_t i = 0; i < SIM_LINES_MAX; i++)
        e->line[i].active_count = e->line[i].current = 0;
    for (uint32_t i = 0; i < sim_queues_used(n); i++) {
        if (n->queue[i].state != SIM_SLOT_LIVE || n->queue[i].device != device) continue;
        struct sim_line *l = &e->line[n->queue[i].line % SIM_LINES_MAX];
        l->active[l->active_count++] = (uint16_t)i;
    }
}

void sim_lock_node(struct sim *s)
{
    if (pthread_mutex_lock(&s->node->lock) == EOWNERDEAD) {
        s->node->owner_dead_count++;
        pthread_mutex_consistent(&s->node->lock);
    }
}

void sim_unlock_node(struct sim *s)
{
    pthread_mutex_unlock(&s->node->lock);
}

void sim_lock_device(struct sim *s, uint32_t device)
{
    struct sim_device *d = &s->node->device[device];
    if (pthread_mutex_lock(&d->lock) == EOWNERDEAD) {
        __atomic_fetch_add(&s->node->owner_dead_count, 1, __ATOMIC_RELAXED);
        sim_recount(s->node, device);
        queue_lists_rebuild(s->node, device);
        pthread_mutex_consistent(&d->lock);
    }
}

void sim_unlock_device(struct sim *s, uint32_t device)
{
    pthread_mutex_unlock(&s->node->device[device].lock);
}

void sim_count_unserved(struct sim *s, const char *name, bool kernel)
{
    struct sim_node *n = s->node;
    sim_lock_node(s);
    uint32_t i = 0;
    while (i < n->unserved_count &&
           (strncmp(n->unserved[i].name, name, sizeof n->unserved[i].name - 1) != 0 ||
            (n->unserved[i].kernel != 0) != kernel))
        i++;
    if (i < SIM_UNSERVED_MAX) {
        if (i == n->unserved_count) {
            snprintf(n->unserved[i].name, sizeof n->unserved[i].name, "%s", name);
            n->unserved[i].kernel = kernel;
            n->unserved[i].count = 0;
            n->unserved_count++;
        }
        n->unserved[i].count++;
    }
    sim_unlock_node(s);
}

void sim_inject_xid_at(struct sim *s, uint32_t device, uint32_t place, uint32_t xid, uint32_t pid)
{
    struct sim_device *d = &s->node->device[device];
    struct sim_faults *f = &d->faults;
    sim_lock_device(s, device);
    const struct sim_ci *c = place < SIM_CI_MAX && d->mig.ci[place].used ? &d->mig.ci[place] : NULL;
    f->xid[f->xid_count % SIM_XIDS_MAX] = (struct sim_xid){.time_ns = sim_realtime(),
                                                           .xid = xid,
                                                           .pid = pid,
                                                           .gi = c ? c->gi_id : SIM_NO_INSTANCE,
                                                           .ci = c ? c->id : SIM_NO_INSTANCE};
    __atomic_store_n(&f->xid_count, f->xid_count + 1, __ATOMIC_RELEASE);
    if (xid == 79) f->lost = 1; /* "GPU has fallen off the bus" */
    sim_unlock_device(s, device);
}

void sim_inject_xid(struct sim *s, uint32_t device, uint32_t xid, uint32_t pid)
{
    sim_inject_xid_at(s, device, SIM_NO_INSTANCE, xid, pid);
}

void sim_inject_ecc_at(struct sim *s, uint32_t device, uint32_t place, bool uncorrectable)
{
    struct sim_device *d = &s->node->device[device];
    struct sim_faults *f = &d->faults;
    sim_lock_device(s, device);
    const struct sim_ci *c = place < SIM_CI_MAX && d->mig.ci[place].used ? &d->mig.ci[place] : NULL;
    if (!uncorrectable) {
        f->ecc_volatile_sbe++;
        f->ecc_aggregate_sbe++;
    } else {
        f->ecc_volatile_dbe++;
        f->ecc_aggregate_dbe++;
        if (c) {
            d->mig.gi[c->gi_id % SIM_GI_MAX].fatal_epoch++;
        } else {
            f->fatal_result = 0;
            f->fatal_epoch++;
        }
    }
    sim_unlock_device(s, device);
    if (uncorrectable) sim_inject_xid_at(s, device, place, c ? SIM_XID_CONTAINED : SIM_XID_DOUBLE_BIT, 0);
}

void sim_inject_ecc(struct sim *s, uint32_t device, bool uncorrectable)
{
    sim_inject_ecc_at(s, device, SIM_NO_INSTANCE, uncorrectable);
}
