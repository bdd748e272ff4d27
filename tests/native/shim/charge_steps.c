/*
 * Kills a process after every single instruction of a reservation and its release, and checks the counters each
 * time.
 *
 * A traced child runs a few transactions and is killed at instruction n, for n = 1, 2, ... until it completes.
 * Each time the parent, a living process of the same container, first does a transaction of its own, then reaps
 * the child: the counter must be exactly the parent's own bytes. Prints the number of instructions tried.
 */
#define _GNU_SOURCE
#include "page/reap.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT  (1ull << 30)
#define PARENT 7u
#define CHILD  900u

static struct cb_usage *usage;

static void child(void)
{
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    raise(SIGSTOP);
    (void)cb_charge_add(usage, CHILD, 0, 4096, LIMIT);
    (void)cb_charge_sub(usage, CHILD, 0, 4096);
    _exit(0);
}

static void fail(const char *what, long step, uint64_t is, uint64_t should)
{
    printf("%s at instruction %ld: %llu, not %llu\n", what, step, (unsigned long long)is,
           (unsigned long long)should);
    exit(1);
}

/* Return true if the child ended by itself before instruction `last`. */
static int run_child(long last, uint32_t generation)
{
    int status = 0, ended = 0;
    if (!cb_proc_change(&usage->proc[CHILD], CB_PROC_FREE, generation - 1, CB_PROC_LIVE, generation, 1))
        fail("claim", last, 0, 1);
    pid_t pid = fork();
    if (pid == 0) child();
    waitpid(pid, &status, 0);
    for (long step = 0; step < last && !ended; step++) {
        ptrace(PTRACE_SINGLESTEP, pid, 0, 0);
        waitpid(pid, &status, 0);
        ended = WIFEXITED(status);
    }
    if (!ended) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    return ended;
}

int main(void)
{
    uint64_t mine = 0;
    usage = mmap(NULL, sizeof(*usage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (long last = 1;; last++) {
        uint32_t generation = (uint32_t)last;
        int ended = run_child(last, generation);
        if (last % 3 == 1) { /* sometimes the reap is the first to help, sometimes another living process */
            if (!cb_charge_add(usage, PARENT, 0, 512, LIMIT)) fail("denied", last, 0, 1);
            mine += 512;
        } else if (last % 3 == 2) {
            mine -= cb_charge_sub(usage, PARENT, 0, 512);
        }
        if (!cb_reap_slot(usage, CHILD, generation) || !cb_reap_slot(usage, CHILD, generation))
            fail("reap", last, 0, 1);
        if (usage->device[0].used_bytes != mine) fail("container", last, usage->device[0].used_bytes, mine);
        if (usage->proc[CHILD].share[0].used_bytes != 0 || usage->proc[CHILD].state != CB_PROC_FREE)
            fail("child", last, usage->proc[CHILD].share[0].used_bytes, 0);
        if (usage->proc[PARENT].share[0].used_bytes != mine)
            fail("parent", last, usage->proc[PARENT].share[0].used_bytes, mine);
        if (ended) {
            printf("%ld\n", last);
            return 0;
        }
    }
}
