/*
 * Opening, claiming and keeping the shared state of a simulated node; state.h has the theory.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/node/state.h"

#include "sim/node/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Locks live on bytes far behind the end of the file, one region for each kind. */
#define LIVE_BASE ((off_t)1 << 40)
#define PID_BASE  ((off_t)1 << 41)

static uint64_t realtime(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void read_line(const char *path, char *out, size_t size)
{
    out[0] = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n = read(fd, out, size - 1);
    close(fd);
    out[n > 0 ? n : 0] = 0;
    out[strcspn(out, "\n")] = 0;
}

static void init_mutex(pthread_mutex_t *m)
{
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    memset(m, 0, sizeof *m);
    pthread_mutex_init(m, &a);
    pthread_mutexattr_destroy(&a);
}

/* Everything that dies with the machine: locks, processes, queues, engine time. */
static void reset_dynamic(struct sim_node *n)
{
    init_mutex(&n->lock);
    for (uint32_t i = 0; i < n->device_count; i++) {
        struct sim_device *d = &n->device[i];
        init_mutex(&d->lock);
        d->used_bytes = d->alloc_bytes = d->alloc_peak_bytes = d->used_peak_bytes = 0;
        d->engine.time_ns = d->engine.slice_end_ns = 0;
        d->engine.current = d->engine.active_count = 0;
        memset(&d->engine.history, 0, sizeof d->engine.history);
    }
    for (uint32_t i = 0; i < sim_procs_used(n); i++) {
        if (n->proc[i].state != SIM_SLOT_FREE) memset(&n->proc[i], 0, sizeof n->proc[i]);
    }
    for (uint32_t i = 0; i < sim_queues_used(n); i++) {
        if (n->queue[i].state != SIM_SLOT_FREE) n->queue[i].state = SIM_SLOT_FREE;
    }
    n->swept_ns = 0;
    read_line("/proc/sys/kernel/random/boot_id", n->boot_id, sizeof n->boot_id);
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
    /* Like the device nodes of a real card, a node is for every user whom its directory lets in. */
    if (fchmod(fd, 0666) != 0 || ftruncate(fd, sizeof *n) != 0)
        result = -errno;
    else if ((n = mmap(NULL, sizeof *n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        result = -errno;
    if (result == 0) {
        n->version = SIM_VERSION;
        n->device_count = count;
        n->size_bytes = sizeof *n;
        n->driver_cuda = 13000;
        snprintf(n->driver_version, sizeof n->driver_version, "580.95.05");
        snprintf(n->nvml_version, sizeof n->nvml_version, "13.580.95.05");
        snprintf(n->name, sizeof n->name, "%s", name ? name : "sim");
        n->created_ns = realtime();
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

/* A node file outlives a reboot; what it says of processes does not. */
static void check_boot(struct sim_node *n, int fd)
{
    char boot[40];
    read_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    if (strcmp(boot, n->boot_id) == 0) return;
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
    check_boot(n, fd);
    s->node = n;
    s->fd = fd;
    s->file_device = st.st_dev;
    s->file_inode = st.st_ino;
    return 0;
}

/* Totals are sums over the process table. */
static void recount(struct sim_node *n, uint32_t device)
{
    uint64_t alloc = 0, context = 0;
    for (uint32_t i = 0; i < sim_procs_used(n); i++) {
        if (n->proc[i].state != SIM_SLOT_LIVE) continue;
        alloc += n->proc[i].device[device].alloc_bytes;
        context += n->proc[i].device[device].context_bytes;
    }
    struct sim_device *d = &n->device[device];
    d->alloc_bytes = alloc;
    d->used_bytes = alloc + context;
}

/* The list of a device's queues, from the queues themselves: its writer may have died half-way. */
static void relist(struct sim_node *n, uint32_t device)
{
    struct sim_engine *e = &n->device[device].engine;
    e->active_count = e->current = 0;
    for (uint32_t i = 0; i < sim_queues_used(n); i++) {
        if (n->queue[i].state == SIM_SLOT_LIVE && n->queue[i].device == device)
            e->active[e->active_count++] = (uint16_t)i;
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
        recount(s->node, device);
        relist(s->node, device);
        pthread_mutex_consistent(&d->lock);
    }
}

void sim_unlock_device(struct sim *s, uint32_t device)
{
    pthread_mutex_unlock(&s->node->device[device].lock);
}

static int lock_byte(int fd, int command, short type, off_t offset)
{
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = offset, .l_len = 1};
    return fcntl(fd, command, &l);
}

static bool slot_is_held(struct sim *s, uint32_t slot)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LIVE_BASE + slot, .l_len = 1};
    if (fcntl(s->fd, F_OFD_GETLK, &l) != 0) return true;
    return l.l_type != F_UNLCK;
}

/* Drop all that a slot holds. The caller holds the node's lock. */
static void free_slot(struct sim *s, uint32_t slot)
{
    struct sim_node *n = s->node;
    engine_drop_process(s, slot);
    for (uint32_t i = 0; i < n->device_count; i++) {
        sim_lock_device(s, i);
        struct sim_proc_device *p = &n->proc[slot].device[i];
        if (p->mig_used && p->mig_gi_id < SIM_GI_MAX) {
            struct sim_gi *g = &n->device[i].mig.gi[p->mig_gi_id];
            uint64_t held = p->alloc_bytes + p->context_bytes;
            g->used_bytes -= held < g->used_bytes ? held : g->used_bytes;
        }
        memset(p, 0, sizeof *p);
        recount(n, i);
        sim_unlock_device(s, i);
    }
    __atomic_store_n(&n->proc[slot].state, SIM_SLOT_FREE, __ATOMIC_RELEASE);
}

/* The program may have closed our descriptor, and its number may be another file's now. The slot's lock lives
 * on with the mapping; to look at the locks of others any descriptor of the node will do. */
static bool can_look(struct sim *s)
{
    struct stat st;
    if (fstat(s->fd, &st) == 0 && st.st_dev == s->file_device && st.st_ino == s->file_inode) return true;
    int fd = open(s->path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    if (fstat(fd, &st) != 0 || st.st_dev != s->file_device || st.st_ino != s->file_inode) {
        close(fd);
        return false;
    }
    s->fd = fd;
    return true;
}

int sim_sweep(struct sim *s, uint64_t at_most_every_ns)
{
    struct sim_node *n = s->node;
    uint64_t now = sim_now();
    if (at_most_every_ns && now - __atomic_load_n(&n->swept_ns, __ATOMIC_RELAXED) < at_most_every_ns)
        return 0;
    int freed = 0;
    if (!can_look(s)) return 0;
    sim_lock_node(s);
    n->swept_ns = now;
    for (uint32_t i = 0; i < sim_procs_used(n); i++) {
        if (n->proc[i].state != SIM_SLOT_LIVE || (int)i == s->slot || slot_is_held(s, i)) continue;
        free_slot(s, i);
        freed++;
    }
    n->swept_count += (uint64_t)freed;
    sim_unlock_node(s);
    return freed;
}

static void describe_self(struct sim_proc *p)
{
    struct stat st;
    char text[1024];
    p->pid = (uint64_t)getpid();
    p->uid = (uint32_t)getuid();
    p->attached_ns = realtime();
    p->pid_namespace = stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
    ssize_t length = readlink("/proc/self/exe", p->name, sizeof p->name - 1);
    p->name[length > 0 ? length : 0] = 0;
    read_line("/proc/self/stat", text, sizeof text);
    p->start_ticks = 0;
    char *field = strrchr(text, ')'); /* the command before it may hold blanks */
    for (int i = 0; field && i < 20; i++)
        field = strchr(field + 1, ' ');
    if (field) p->start_ticks = strtoull(field + 1, NULL, 10);
}

int sim_attach(struct sim *s)
{
    struct sim_node *n = s->node;
    if (s->slot >= 0) return 0;
    /* The lock belongs to the open file, so a second library in this process needs a description of its own:
     * a reopen gives one even when the descriptor was duplicated. */
    sim_sweep(s, 100000000ull);
    sim_lock_node(s);
    int result = -EAGAIN;
    for (uint32_t i = 0; i < SIM_PROCS_MAX && result != 0; i++) {
        struct sim_proc *p = &n->proc[i];
        if (lock_byte(s->fd, F_OFD_SETLK, F_WRLCK, LIVE_BASE + i) != 0) continue;
        if (p->state == SIM_SLOT_LIVE) {
            free_slot(s, i); /* its owner is dead: the byte was free */
            n->swept_count++;
        }
        uint32_t generation = p->generation + 1;
        memset(p, 0, sizeof *p);
        p->generation = generation;
        describe_self(p);
        lock_byte(s->fd, F_SETLK, F_WRLCK, PID_BASE + i);
        s->slot = (int)i;
        if (i >= n->proc_high) __atomic_store_n(&n->proc_high, i + 1, __ATOMIC_RELEASE);
        __atomic_store_n(&p->state, SIM_SLOT_LIVE, __ATOMIC_RELEASE);
        result = 0;
    }
    sim_unlock_node(s);
    /* The lock lasts as long as a descriptor or a mapping of this opening: a forked child must have neither.
     */
    if (result == 0) madvise(n, sizeof *n, MADV_DONTFORK);
    return result;
}

void sim_detach(struct sim *s)
{
    if (s->slot < 0) return;
    sim_lock_node(s);
    free_slot(s, (uint32_t)s->slot);
    lock_byte(s->fd, F_SETLK, F_UNLCK, PID_BASE + s->slot);
    lock_byte(s->fd, F_OFD_SETLK, F_UNLCK, LIVE_BASE + s->slot);
    s->slot = -1;
    sim_unlock_node(s);
}

void sim_forget(struct sim *s)
{
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
    s->slot = -1;
    s->node = NULL;
}

pid_t sim_process_pid(struct sim *s, uint32_t slot)
{
    if (slot >= SIM_PROCS_MAX) return 0;
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = PID_BASE + slot, .l_len = 1};
    if (fcntl(s->fd, F_GETLK, &l) != 0) return 0;
    /* One's own lock is no obstacle to oneself. */
    if (l.l_type == F_UNLCK) return s->node->proc[slot].pid == (uint64_t)getpid() ? getpid() : 0;
    return l.l_pid > 0 ? l.l_pid : 0;
}

/* An injected allocation failure. The caller holds the device's lock. */
static bool fails_by_injection(struct sim_device *d)
{
    if (d->faults.alloc_fail_countdown > 0 && --d->faults.alloc_fail_countdown == 0) return true;
    if (d->faults.alloc_fail_permille == 0) return false;
    uint64_t x = (d->alloc_count + d->denied_count + 1) * 0x9E3779B97F4A7C15ull;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    x ^= x >> 32;
    return x % 1000 < d->faults.alloc_fail_permille;
}

static bool try_charge(struct sim *s, uint32_t device, uint64_t bytes, bool context)
{
    struct sim_device *d = &s->node->device[device];
    struct sim_proc_device *p = &s->node->proc[s->slot].device[device];
    struct sim_gi *g = p->mig_used && p->mig_gi_id < SIM_GI_MAX ? &d->mig.gi[p->mig_gi_id] : NULL;
    uint64_t total = sim_device_total(d);
    if (d->used_bytes > total || bytes > total - d->used_bytes) return false;
    if (g && (g->used_bytes > g->memory_bytes || bytes > g->memory_bytes - g->used_bytes)) return false;
    if (g) g->used_bytes += bytes;
    if (context) {
        p->context_bytes += bytes;
        p->context_count++;
    } else {
        p->alloc_bytes += bytes;
        d->alloc_bytes += bytes;
        d->alloc_count++;
        if (p->alloc_bytes > p->alloc_peak_bytes) p->alloc_peak_bytes = p->alloc_bytes;
        if (d->alloc_bytes > d->alloc_peak_bytes) d->alloc_peak_bytes = d->alloc_bytes;
    }
    d->used_bytes += bytes;
    if (d->used_bytes > d->used_peak_bytes) d->used_peak_bytes = d->used_bytes;
    return true;
}

bool sim_charge(struct sim *s, uint32_t device, uint64_t bytes, bool context)
{
    struct sim_device *d = &s->node->device[device];
    sim_lock_device(s, device);
    bool injected = !context && fails_by_injection(d);
    bool ok = !injected && try_charge(s, device, bytes, context);
    sim_unlock_device(s, device);
    if (!ok && !injected && sim_sweep(s, 0) > 0) {
        sim_lock_device(s, device);
        ok = try_charge(s, device, bytes, context);
        sim_unlock_device(s, device);
    }
    if (!ok) __atomic_fetch_add(&d->denied_count, 1, __ATOMIC_RELAXED);
    return ok;
}

void sim_refund(struct sim *s, uint32_t device, uint64_t bytes, bool context)
{
    struct sim_device *d = &s->node->device[device];
    struct sim_proc_device *p = &s->node->proc[s->slot].device[device];
    sim_lock_device(s, device);
    uint64_t *from = context ? &p->context_bytes : &p->alloc_bytes;
    if (bytes > *from) bytes = *from;
    *from -= bytes;
    if (context) {
        if (p->context_count) p->context_count--;
    } else {
        d->alloc_bytes -= bytes < d->alloc_bytes ? bytes : d->alloc_bytes;
        d->free_count++;
    }
    d->used_bytes -= bytes < d->used_bytes ? bytes : d->used_bytes;
    if (p->mig_used && p->mig_gi_id < SIM_GI_MAX) {
        struct sim_gi *g = &d->mig.gi[p->mig_gi_id];
        g->used_bytes -= bytes < g->used_bytes ? bytes : g->used_bytes;
    }
    sim_unlock_device(s, device);
}

void sim_count_unserved(struct sim *s, const char *name)
{
    struct sim_node *n = s->node;
    sim_lock_node(s);
    uint32_t i = 0;
    while (i < n->unserved_count && strncmp(n->unserved[i].name, name, sizeof n->unserved[i].name - 1) != 0)
        i++;
    if (i < SIM_UNSERVED_MAX) {
        if (i == n->unserved_count) {
            snprintf(n->unserved[i].name, sizeof n->unserved[i].name, "%s", name);
            n->unserved[i].count = 0;
            n->unserved_count++;
        }
        n->unserved[i].count++;
    }
    sim_unlock_node(s);
}

void sim_inject_xid(struct sim *s, uint32_t device, uint32_t xid, uint32_t pid)
{
    struct sim_faults *f = &s->node->device[device].faults;
    sim_lock_device(s, device);
    f->xid[f->xid_count % SIM_XIDS_MAX] = (struct sim_xid){.time_ns = realtime(), .xid = xid, .pid = pid};
    __atomic_store_n(&f->xid_count, f->xid_count + 1, __ATOMIC_RELEASE);
    if (xid == 79) f->lost = 1; /* "GPU has fallen off the bus" */
    sim_unlock_device(s, device);
}

void sim_inject_ecc(struct sim *s, uint32_t device, bool uncorrectable)
{
    struct sim_faults *f = &s->node->device[device].faults;
    sim_lock_device(s, device);
    if (uncorrectable) {
        f->ecc_volatile_dbe++;
        f->ecc_aggregate_dbe++;
        f->fatal_result = 0;
        f->fatal_epoch++;
    } else {
        f->ecc_volatile_sbe++;
        f->ecc_aggregate_sbe++;
    }
    sim_unlock_device(s, device);
    if (uncorrectable) sim_inject_xid(s, device, 48, 0);
}
