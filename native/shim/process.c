/*
 * Process slots: registration of the container's processes, and reaping of dead ones.
 *
 * A slot's (state, generation, pid) changes as one 16-byte word, so a process killed while it takes one leaves
 * either a free slot or one that names it. A slot is live if its pid exists, started when the slot says, and
 * has not ended. Only processes of our own PID namespace can be checked; the agent checks the others. A process
 * that has ended, whether or not its parent has read its exit code, has closed its files, so the driver has
 * freed what it held: the bytes may be removed from the counters.
 */
#define _GNU_SOURCE
#include "shim/process.h"

#include "page/reap.h"
#include "shim/base.h"
#include "shim/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

#define THOROUGH_EVERY_NS 1000000000u
#define ENTER_TRIES       8u

/* Start time of a process; 0: there is no such process. */
static uint64_t start_time_of(int32_t pid)
{
    char path[32], text[512];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (length <= 0) return 0;
    text[length] = 0;
    /*
     * The command may contain spaces and parentheses: fields are counted from the last ')', which ends field 2.
     */
    char *field = strrchr(text, ')');
    for (int number = 2; field != NULL && number < 22; number++)
        field = strchr(field + 1, ' ');
    return field != NULL ? strtoull(field + 1, NULL, 10) : 0;
}

static uint64_t pid_namespace_of(const char *link)
{
    char text[64];
    ssize_t length = readlink(link, text, sizeof(text) - 1);
    if (length <= 5) return 0;
    text[length] = 0;
    return strtoull(text + 5, NULL, 10); /* after "pid:[" */
}

static uint64_t pid_namespace(void)
{
    return pid_namespace_of("/proc/self/ns/pid");
}

/* The PID that a process has in its own namespace, which may be below ours; 0: unknown. */
static int32_t innermost_pid(int32_t pid)
{
    char path[32], text[4096];
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[length > 0 ? length : 0] = 0;
    char *field = strstr(text, "\nNSpid:");
    if (field == NULL) return 0;
    field += 7;
    field[strcspn(field + 1, "\n") + 1] = 0;
    const char *last = strrchr(field, '\t');
    return last != NULL ? (int32_t)strtol(last, NULL, 10) : 0;
}

static uint64_t monotonic_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Return true if a pid that still exists belongs to a process whose threads have all ended. */
static bool process_has_ended(int32_t pid)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0) return errno == EINVAL; /* by now the number is a thread's of another process */
    struct pollfd poll_for = {.fd = fd, .events = POLLIN};
    bool ended = poll(&poll_for, 1, 0) == 1;
    close(fd);
    return ended;
}

/* `thorough` also finds a pid that was reused by another process; it reads a file for each living process. */
static bool slot_is_dead(const struct cb_usage_proc *proc, uint64_t here, bool thorough)
{
    int32_t pid = __atomic_load_n(&proc->pid, __ATOMIC_ACQUIRE);
    if (pid <= 0) return false;
    if (__atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) == CB_PROC_LIVE && proc->pid_namespace == here) {
        /* Read only now: before it was live, the slot still had the start time of its last owner. */
        uint64_t started = __atomic_load_n(&proc->start_time, __ATOMIC_ACQUIRE);
        if (kill(pid, 0) != 0 && errno == ESRCH) return true;
        if (process_has_ended(pid)) return true;
        if (!thorough) return false;
        uint64_t now = start_time_of(pid);
        return started != 0 && now != 0 && now != started;
    }
    /* Taken and not yet live: it holds nothing, and its namespace is not known; the agent checks it. */
    return false;
}

static bool slot_holds_memory(const struct cb_usage_proc *proc, int device)
{
    return device < 0 || __atomic_load_n(&proc->share[device].used_bytes, __ATOMIC_RELAXED) != 0;
}

/* Reap dead processes that hold memory of one device, or with device -1 all dead processes. */
static unsigned slots_reap(struct cb_usage *usage, uint64_t here, int device, bool thorough)
{
    unsigned freed = 0;
    int saved = errno;
    for (uint32_t slot = 0; slot < CB_PROCS_MAX; slot++) {
        struct cb_usage_proc *proc = &usage->proc[slot];
        if (__atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) == CB_PROC_FREE || proc == cb.proc ||
            !slot_holds_memory(proc, device))
            continue;
        uint32_t generation = cb_proc_generation(proc);
        if (slot_is_dead(proc, here, thorough) && cb_reap_slot(usage, slot, generation)) freed++;
    }
    if (freed > 0) __atomic_store_n(&usage->reaped_ns, monotonic_ns(), __ATOMIC_RELAXED);
    errno = saved;
    return freed;
}

bool cb_process_lives(const struct cb_usage *usage, uint32_t slot)
{
    const struct cb_usage_proc *proc = &usage->proc[slot];
    return __atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) != CB_PROC_FREE &&
           !slot_is_dead(proc, pid_namespace(), true);
}

int cb_process_find(struct cb_usage *usage, int32_t pid)
{
    char link[32];
    int saved = errno, found = -1;
    snprintf(link, sizeof(link), "/proc/%d/ns/pid", (int)pid);
    uint64_t there = pid_namespace_of(link), started = start_time_of(pid);
    int32_t inner = innermost_pid(pid);
    for (uint32_t slot = 0; slot < CB_PROCS_MAX && there != 0 && inner > 0 && found < 0; slot++) {
        const struct cb_usage_proc *proc = &usage->proc[slot];
        if (__atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) == CB_PROC_LIVE && proc->pid == inner &&
            proc->pid_namespace == there && proc->start_time == started)
            found = (int)slot;
    }
    errno = saved;
    return found;
}

unsigned cb_processes_reap(int device)
{
    static uint64_t looked_ns;
    uint64_t now = monotonic_ns();
    bool thorough = now - __atomic_load_n(&looked_ns, __ATOMIC_RELAXED) > THOROUGH_EVERY_NS;
    if (thorough) __atomic_store_n(&looked_ns, now, __ATOMIC_RELAXED);
    return slots_reap(cb.usage, cb.proc->pid_namespace, device, thorough);
}

unsigned cb_processes_reap_ended(int device)
{
    return slots_reap(cb.usage, cb.proc->pid_namespace, device, false);
}

uint64_t cb_processes_elsewhere(int device)
{
    uint64_t bytes = 0;
    for (uint32_t slot = 0; slot < CB_PROCS_MAX; slot++) {
        const struct cb_usage_proc *proc = &cb.usage->proc[slot];
        if (__atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) != CB_PROC_FREE &&
            proc->pid_namespace != cb.proc->pid_namespace)
            bytes += __atomic_load_n(&proc->share[device].used_bytes, __ATOMIC_RELAXED);
    }
    return bytes;
}

static int slot_take_free(struct cb_usage *usage, int32_t pid, uint32_t *generation)
{
    for (uint32_t i = 0; i < CB_PROCS_MAX; i++) {
        uint32_t slot = ((uint32_t)pid * 31u + i) % CB_PROCS_MAX;
        struct cb_usage_proc *proc = &usage->proc[slot];
        if (__atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) != CB_PROC_FREE) continue;
        uint32_t before = cb_proc_generation(proc);
        *generation = before + 1;
        if (cb_proc_change(proc, CB_PROC_FREE, before, CB_PROC_TAKEN, *generation, pid)) return (int)slot;
    }
    return -1;
}

/* Reap the slot that a process left under this very pid when it used the GPU and then called exec. */
static void slots_reap_own_pid(struct cb_usage *usage, int32_t pid, uint64_t here)
{
    for (uint32_t slot = 0; slot < CB_PROCS_MAX; slot++) {
        struct cb_usage_proc *proc = &usage->proc[slot];
        if (__atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) == CB_PROC_LIVE && proc->pid == pid &&
            proc->pid_namespace == here)
            (void)cb_reap_slot(usage, slot, cb_proc_generation(proc));
    }
}

/* Return false if another process reaped this one by mistake: the slot may have another owner. */
static bool slot_become_live(struct cb_usage_proc *proc, uint32_t generation, int32_t pid, uint64_t here)
{
    memset(proc->reserving_bytes, 0, sizeof(proc->reserving_bytes));
    memset(proc->context_bytes, 0, sizeof(proc->context_bytes));
    memset(proc->inflight_ns, 0, sizeof(proc->inflight_ns));
    memset(proc->inflight_until_ns, 0, sizeof(proc->inflight_until_ns));
    memset(proc->waiting, 0, sizeof(proc->waiting));
    memset(proc->pageable_units, 0, sizeof(proc->pageable_units));
    memset(proc->parked_units, 0, sizeof(proc->parked_units));
    proc->parker = proc->parked = 0;
    proc->context_count = 0;
    proc->pid_namespace = here;
    proc->start_time = start_time_of(pid);
    return cb_proc_change(proc, CB_PROC_TAKEN, generation, CB_PROC_LIVE, generation, pid);
}

int cb_process_enter(struct cb_usage *usage)
{
    int32_t pid = (int32_t)getpid();
    uint64_t here = pid_namespace();
    slots_reap_own_pid(usage, pid, here);
    for (unsigned tries = 0; tries < ENTER_TRIES; tries++) {
        uint32_t generation = 0;
        int slot = slot_take_free(usage, pid, &generation);
        if (slot < 0 && slots_reap(usage, here, -1, true) > 0) slot = slot_take_free(usage, pid, &generation);
        if (slot < 0) return -1;
        if (slot_become_live(&usage->proc[slot], generation, pid, here)) return slot;
    }
    return -1;
}
