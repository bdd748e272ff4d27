/*
 * A process that is taken for dead while it enters: its slot is reaped and given to another between the moment
 * it took it and the moment it is live. It must end up with a slot of its own, and the other must keep what it
 * has.
 *
 * argv[1] is the number of consecutive times that it is taken for dead. Prints the number of live slots.
 */
#define _GNU_SOURCE
#include "page/reap.h"
#include "shim/base.h"
#include "shim/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OTHER 77

struct cb_shim cb;

static struct cb_usage *usage;
static int deaths;

/* Precedes the C library's open(): a process reads its own start time while it enters. */
int open(const char *path, int flags, ...)
{
    for (uint32_t slot = 0; slot < CB_PROCS_MAX && deaths > 0 && strstr(path, "/stat") != NULL; slot++) {
        struct cb_usage_proc *proc = &usage->proc[slot];
        uint32_t generation = cb_proc_generation(proc);
        if (proc->state != CB_PROC_TAKEN) continue;
        if (!cb_reap_slot(usage, slot, generation)) exit(2);
        if (!cb_proc_change(proc, CB_PROC_FREE, generation, CB_PROC_LIVE, generation + 1, OTHER)) exit(3);
        deaths--;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0);
}

int main(int argc, char **argv)
{
    unsigned others = 0;
    int wanted = deaths = argc > 1 ? atoi(argv[1]) : 0;
    usage = mmap(NULL, sizeof(*usage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int mine = cb_process_enter(usage);
    for (uint32_t slot = 0; slot < CB_PROCS_MAX; slot++)
        others += usage->proc[slot].state == CB_PROC_LIVE && usage->proc[slot].pid == OTHER;
    if (others + (unsigned)deaths != (unsigned)wanted) exit(4);
    if (mine >= 0 && (usage->proc[mine].state != CB_PROC_LIVE || usage->proc[mine].pid != getpid())) exit(5);
    printf("%s %u\n", mine >= 0 ? "in" : "refused", others);
    return 0;
}
