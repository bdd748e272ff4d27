/* Process slots of a node: attaching, liveness, and sweeping of dead processes. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/node/slot.h"

#include "sim/node/engine.h"
#include "sim/node/liveness.h"
#include "sim/node/managed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int byte_lock(int fd, int command, short type, off_t offset)
{
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = offset, .l_len = 1};
    return fcntl(fd, command, &l);
}

/* Keep the last seconds of a process that ends, because NVML reports them. Requires the node's lock. */
static void departed_record(struct sim_node *n, const struct sim_proc *p, uint32_t device)
{
    const struct sim_ticks *ticks = &p->device[device].ticks;
    uint64_t oldest = sim_now() / SIM_PROC_TICK_NS - SIM_PROC_TICKS;
    bool recent = false;
    for (uint32_t i = 0; i < SIM_PROC_TICKS; i++)
        recent = recent || (ticks->tick[i] > oldest && ticks->busy_ns[i] > 0);
    if (!recent) return;
    n->departed[n->departed_count++ % SIM_DEPARTED_MAX] = (struct sim_departed){
        .used = 1, .device = device, .pid = p->pid, .pid_namespace = p->pid_namespace, .ticks = *ticks};
}

/* Drop all that a slot holds. Requires the node's lock. */
static void slot_free(struct sim *s, uint32_t slot)
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
        departed_record(n, &n->proc[slot], i);
        managed_drop_process(s, i, slot);
        memset(p, 0, sizeof *p);
        sim_recount(n, i);
        sim_unlock_device(s, i);
    }
    __atomic_store_n(&n->proc[slot].state, SIM_SLOT_FREE, __ATOMIC_RELEASE);
}

int sim_sweep(struct sim *s, uint64_t at_most_every_ns)
{
    struct sim_node *n = s->node;
    uint64_t now = sim_now();
    if (at_most_every_ns && now - __atomic_load_n(&n->swept_ns, __ATOMIC_RELAXED) < at_most_every_ns)
        return 0;
    int freed = 0;
    if (!sim_liveness_readable(s)) return 0;
    sim_lock_node(s);
    n->swept_ns = now;
    for (uint32_t i = 0; i < sim_procs_used(n); i++) {
        if (n->proc[i].state != SIM_SLOT_LIVE || (int)i == s->slot || sim_slot_is_held(s, i)) continue;
        slot_free(s, i);
        freed++;
    }
    n->swept_count += (uint64_t)freed;
    sim_unlock_node(s);
    return freed;
}

static void slot_fill(struct sim_proc *p)
{
    struct stat st;
    char text[1024];
    p->pid = (uint64_t)getpid();
    p->uid = (uint32_t)getuid();
    p->attached_ns = sim_realtime();
    p->pid_namespace = stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
    ssize_t length = readlink("/proc/self/exe", p->name, sizeof p->name - 1);
    p->name[length > 0 ? length : 0] = 0;
    sim_read_line("/proc/self/stat", text, sizeof text);
    p->start_ticks = 0;
    char *field = strrchr(text, ')'); /* the command in front of it may contain blanks */
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
        if (byte_lock(s->fd, F_OFD_SETLK, F_WRLCK, LIVE_BASE + i) != 0) continue;
        if (p->state == SIM_SLOT_LIVE) {
            slot_free(s, i); /* its owner is dead: the byte was not locked */
            n->swept_count++;
        }
        uint32_t generation = p->generation + 1;
        memset(p, 0, sizeof *p);
        p->generation = generation;
        slot_fill(p);
        byte_lock(s->fd, F_SETLK, F_WRLCK, PID_BASE + i);
        s->slot = (int)i;
        if (i >= n->proc_high) __atomic_store_n(&n->proc_high, i + 1, __ATOMIC_RELEASE);
        __atomic_store_n(&p->state, SIM_SLOT_LIVE, __ATOMIC_RELEASE);
        result = 0;
    }
    sim_unlock_node(s);
    /* The lock lasts as long as a descriptor or a mapping of this opening: a forked child must have neither. */
    if (result == 0) madvise(n, sizeof *n, MADV_DONTFORK);
    return result;
}

void sim_detach(struct sim *s)
{
    if (s->slot < 0) return;
    sim_lock_node(s);
    slot_free(s, (uint32_t)s->slot);
    byte_lock(s->fd, F_SETLK, F_UNLCK, PID_BASE + s->slot);
    byte_lock(s->fd, F_OFD_SETLK, F_UNLCK, LIVE_BASE + s->slot);
    s->slot = -1;
    sim_unlock_node(s);
}

void sim_detach_after_fork(struct sim *s)
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
    /* A process's own lock does not conflict with its test. */
    if (l.l_type == F_UNLCK) return s->node->proc[slot].pid == (uint64_t)getpid() ? getpid() : 0;
    return l.l_pid > 0 ? l.l_pid : 0;
}
