/*
 * Process slots: who is in the container, and who has died in it.
 *
 * A slot's (state, generation, pid) moves as one 16-byte word, so a process killed while it takes one leaves
 * either a free slot or one that names it. A slot is live when its pid exists, started when the slot says, and
 * has not ended. Only processes of our own PID namespace can be judged; the agent judges the others. A process
 * that has ended, whether or not its parent has asked for its exit code, has closed its files, so the driver
 * has freed what it held: the bytes may be taken off.
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

uint64_t cb_process_start_time(int32_t pid)
{
    char path[32], text[512];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (length <= 0) return 0;
    text[length] = 0;
    /* The command may hold spaces and parentheses: fields are counted from the last ')', which ends field 2.
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

/* The PID that a process has in its own namespace, which may be one below ours; 0: it cannot be told. */
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

static uint64_t clock_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Whether a pid that still exists is of a process whose threads have all ended. */
static bool has_ended(int32_t pid)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0) return errno == EINVAL; /* by now the number is a thread's of another process */
    struct pollfd poll_for = {.fd = fd, .events = POLLIN};
    bool ended = poll(&poll_for, 1, 0) == 1;
    close(fd);
    return ended;
}

/* `thorough` finds a pid that another program has got by now as well; it reads a file for each living
 * process. */
static bool is_dead(const struct cb_usage_proc *proc, uint64_t here, bool thorough)
{
    int32_t pid = __atomic_load_n(&proc->pid, __ATOMIC_ACQUIRE);
    if (pid <= 0) return false;
    if (__atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) == CB_PROC_LIVE && proc->pid_namespace == here) {
        /* Looked at only now: before it was live, the slot still told when its last owner had started. */
        uint64_t started = __atomic_load_n(&proc->start_time, __ATOMIC_ACQUIRE);
        if (kill(pid, 0) != 0 && errno == ESRCH) return true;
        if (has_ended(pid)) return true;
        if (!thorough) return false;
        uint64_t now = cb_process_start_time(pid);
        return started != 0 && now != 0 && now != started;
    }
    /* Taken and not yet live: it holds nothing, and its namespace is not known; leave it to the agent. */
    return false;
}

static bool holds_anything(const struct cb_usage_proc *proc, int device)
{
    return device < 0 || __atomic_load_n(&proc->share[device].used_bytes, __ATOMIC_RELAXED) != 0;
}

/* Of those that hold memory of one device, or with device -1 of all. */
static unsigned reap(struct cb_usage *usage, uint64_t here, int device, bool thorough)
{
    unsigned freed = 0;
    int saved = errno;
    for (uint32_t slot = 0; slot < CB_PROCS_MAX; slot++) {
        struct cb_usage_proc *proc = &usage->proc[slot];
        if (__atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) == CB_PROC_FREE || proc == cb.proc ||
            !holds_anything(proc, device))
            continue;
        uint32_t generation = cb_generation(proc);
        if (is_dead(proc, here, thorough) && cb_reap_slot(usage, slot, generation)) freed++;
    }
    if (freed > 0) __atomic_store_n(&usage->reaped_ns, clock_ns(), __ATOMIC_RELAXED);
    errno = saved;
    return freed;
}

bool cb_process_lives(const struct cb_usage *usage, uint32_t slot)
{
    const struct cb_usage_proc *proc = &usage->proc[slot];
    return __atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) != CB_PROC_FREE &&
           !is_dead(proc, pid_namespace(), true);
}

int cb_process_find(struct cb_usage *usage, int32_t pid)
{
    char link[32];
    int saved = errno, found = -1;
    snprintf(link, sizeof(link), "/proc/%d/ns/pid", (int)pid);
    uint64_t there = pid_namespace_of(link), started = cb_process_start_time(pid);
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
    uint64_t now = clock_ns();
    bool thorough = now - __atomic_load_n(&looked_ns, __ATOMIC_RELAXED) > THOROUGH_EVERY_NS;
    if (thorough) __atomic_store_n(&looked_ns, now, __ATOMIC_RELAXED);
    return reap(cb.usage, cb.proc->pid_namespace, device, thorough);
}

unsigned cb_processes_reap_ended(int device)
{
    return reap(cb.usage, cb.proc->pid_namespace, device, false);
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

static int take_free(struct cb_usage *usage, int32_t pid, uint32_t *generation)
{
    for (uint32_t i = 0; i < CB_PROCS_MAX; i++) {
        uint32_t slot = ((uint32_t)pid * 31u + i) % CB_PROCS_MAX;
        struct cb_usage_proc *proc = &usage->proc[slot];
        if (__atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) != CB_PROC_FREE) continue;
        uint32_t before = cb_generation(proc);
        *generation = before + 1;
        if (cb_proc_change(proc, CB_PROC_FREE, before, CB_PROC_TAKEN, *generation, pid)) return (int)slot;
    }
    return -1;
}

/* A process that used the GPU and then became another program left a slot under this very pid. */
static void reap_own(struct cb_usage *usage, int32_t pid, uint64_t here)
{
    for (uint32_t slot = 0; slot < CB_PROCS_MAX; slot++) {
        struct cb_usage_proc *proc = &usage->proc[slot];
        if (__atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) == CB_PROC_LIVE && proc->pid == pid &&
            proc->pid_namespace == here)
            (void)cb_reap_slot(usage, slot, cb_generation(proc));
    }
}

/* False if somebody took us for dead meanwhile: the slot may be another's. */
static bool become_live(struct cb_usage_proc *proc, uint32_t generation, int32_t pid, uint64_t here)
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
    proc->start_time = cb_process_start_time(pid);
    return cb_proc_change(proc, CB_PROC_TAKEN, generation, CB_PROC_LIVE, generation, pid);
}

int cb_process_enter(struct cb_usage *usage)
{
    int32_t pid = (int32_t)getpid();
    uint64_t here = pid_namespace();
    reap_own(usage, pid, here);
    for (unsigned tries = 0; tries < ENTER_TRIES; tries++) {
        uint32_t generation = 0;
        int slot = take_free(usage, pid, &generation);
        if (slot < 0 && reap(usage, here, -1, true) > 0) slot = take_free(usage, pid, &generation);
        if (slot < 0) return -1;
        if (become_live(&usage->proc[slot], generation, pid, here)) return slot;
    }
    return -1;
}
