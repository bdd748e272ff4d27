/*
 * Process slots: who is in the container, and who has died in it.
 *
 * A slot's (state, generation, pid) moves as one 16-byte word, so a process killed while it claims leaves
 * either a free slot or one that names it. A slot is live when its pid exists and started when the slot says.
 * Only processes of our own PID namespace can be judged; the agent judges the others. A pid that no longer
 * exists has been reaped, hence its files are closed and the driver has freed what it held: the bytes may be
 * taken off.
 */
#define _GNU_SOURCE
#include "shim/process.h"

#include "page/reclaim.h"
#include "shim/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define THOROUGH_EVERY_NS 1000000000u

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

static uint64_t pid_namespace(void)
{
    char text[64];
    ssize_t length = readlink("/proc/self/ns/pid", text, sizeof(text) - 1);
    if (length <= 5) return 0;
    text[length] = 0;
    return strtoull(text + 5, NULL, 10); /* after "pid:[" */
}

/* `thorough` finds a pid that another program has got by now as well; it reads a file for each living
 * process. */
static bool is_dead(const struct cb_usage_proc *proc, uint64_t here, bool thorough)
{
    int32_t pid = __atomic_load_n(&proc->pid, __ATOMIC_ACQUIRE);
    uint64_t started = __atomic_load_n(&proc->start_time, __ATOMIC_ACQUIRE);
    if (pid <= 0) return false;
    if (__atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) == CB_PROC_LIVE) {
        if (here == 0 || proc->pid_namespace != here) return false;
        if (kill(pid, 0) == -1 && errno == ESRCH) return true;
        uint64_t now = thorough ? cb_process_start_time(pid) : 0;
        return started != 0 && now != 0 && now != started;
    }
    /* Claimed and not yet live: it holds nothing, and its namespace is not known; leave it to the agent. */
    return false;
}

static unsigned reclaim(struct cb_usage *usage, uint64_t here, bool thorough)
{
    unsigned freed = 0;
    int saved = errno;
    for (uint32_t slot = 0; slot < CB_PROCS_MAX; slot++) {
        struct cb_usage_proc *proc = &usage->proc[slot];
        if (__atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) == CB_PROC_FREE || proc == cb.proc) continue;
        uint32_t generation = cb_generation(proc);
        if (is_dead(proc, here, thorough) && cb_reclaim_slot(usage, slot, generation)) freed++;
    }
    errno = saved;
    return freed;
}

unsigned cb_processes_reclaim(void)
{
    static uint64_t looked_ns;
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    uint64_t now = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
    bool thorough = now - __atomic_load_n(&looked_ns, __ATOMIC_RELAXED) > THOROUGH_EVERY_NS;
    if (thorough) __atomic_store_n(&looked_ns, now, __ATOMIC_RELAXED);
    return reclaim(cb.usage, cb.proc->pid_namespace, thorough);
}

static int claim_free(struct cb_usage *usage, int32_t pid)
{
    for (uint32_t i = 0; i < CB_PROCS_MAX; i++) {
        uint32_t slot = ((uint32_t)pid * 31u + i) % CB_PROCS_MAX;
        struct cb_usage_proc *proc = &usage->proc[slot];
        if (__atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) != CB_PROC_FREE) continue;
        uint32_t generation = cb_generation(proc);
        if (cb_proc_change(proc, CB_PROC_FREE, generation, CB_PROC_CLAIMED, generation + 1, pid))
            return (int)slot;
    }
    return -1;
}

/* A process that used the GPU and then became another program left a slot under this very pid. */
static void reclaim_own(struct cb_usage *usage, int32_t pid, uint64_t here)
{
    for (uint32_t slot = 0; slot < CB_PROCS_MAX; slot++) {
        struct cb_usage_proc *proc = &usage->proc[slot];
        if (__atomic_load_n(&proc->state, __ATOMIC_ACQUIRE) == CB_PROC_LIVE && proc->pid == pid &&
            proc->pid_namespace == here)
            (void)cb_reclaim_slot(usage, slot, cb_generation(proc));
    }
}

int cb_process_claim(struct cb_usage *usage)
{
    int32_t pid = (int32_t)getpid();
    uint64_t here = pid_namespace();
    reclaim_own(usage, pid, here);
    int slot = claim_free(usage, pid);
    if (slot < 0 && reclaim(usage, here, true) > 0) slot = claim_free(usage, pid);
    if (slot < 0) return -1;
    struct cb_usage_proc *proc = &usage->proc[slot];
    memset(proc->reserving_bytes, 0, sizeof(proc->reserving_bytes));
    memset(proc->context_bytes, 0, sizeof(proc->context_bytes));
    memset(proc->inflight_ns, 0, sizeof(proc->inflight_ns));
    memset(proc->inflight_until_ns, 0, sizeof(proc->inflight_until_ns));
    memset(proc->waiting, 0, sizeof(proc->waiting));
    memset(proc->reserved, 0, sizeof(proc->reserved));
    proc->context_count = 0;
    proc->pid_namespace = here;
    proc->start_time = cb_process_start_time(pid);
    __atomic_store_n(&proc->state, CB_PROC_LIVE, __ATOMIC_RELEASE);
    return slot;
}
