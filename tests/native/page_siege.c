/*
 * Test of an agent on a page that its tenant overwrites continuously: page_siege USAGE_FILE ROUNDS.
 *
 * Two processes of the tenant forge the words that the agent exchanges, with tags and sequences that look like
 * the next step. Prints the longest call in milliseconds: each call must return, whatever its result.
 */
#define _GNU_SOURCE
#include "page/charge.h"
#include "page/pagelib.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLOT       3u
#define GENERATION 5u

static struct cb_usage *usage;

#define FORGE(word, value) __atomic_store_n(&(word), (value), __ATOMIC_RELAXED)

static void forge_counters(void)
{
    for (uint64_t i = 1;; i++) {
        uint32_t device = (uint32_t)i % CB_DEVICES_MAX;
        FORGE(usage->device[device].used_tag, cb_tag(SLOT, i + 1, 8));
        FORGE(usage->device[device].used_bytes, i * 512);
        FORGE(usage->proc[SLOT].share[device].sequence, i);
        FORGE(usage->proc[SLOT].share[device].used_bytes, 4096 + i % 64 * 512);
    }
}

static void forge_head(void)
{
    struct cb_usage_proc *proc = &usage->proc[SLOT];
    for (uint32_t i = 1;; i++) {
        FORGE(proc->state, CB_PROC_LIVE);
        FORGE(proc->generation, GENERATION);
        FORGE(proc->pid, 7);
        FORGE(proc->host_pid, (int32_t)i);
        FORGE(proc->inflight_ns[i % CB_DEVICES_MAX], i);
        FORGE(proc->waiting[i % CB_DEVICES_MAX], i);
        FORGE(usage->device[i % CB_DEVICES_MAX].inflight_ns, i);
    }
}

static pid_t tenant(void (*forge)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        forge();
    }
    return pid;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(int argc, char **argv)
{
    if (argc != 3) return 2;
    int file = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ftruncate(file, sizeof *usage) != 0) return 3;
    usage = mmap(NULL, sizeof *usage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (usage == MAP_FAILED) return 4;
    pid_t tenants[] = {tenant(forge_counters), tenant(forge_head)};
    uint64_t longest = 0, wrong = 0;
    for (int round = 0, rounds = atoi(argv[2]); round < rounds; round++) {
        uint64_t at[3] = {now_ns()};
        int reaped = cb_page_reap(usage, SLOT, GENERATION, 7, 0);
        at[1] = now_ns();
        int named = cb_page_set_host_pid(usage, SLOT, GENERATION, 77);
        at[2] = now_ns();
        wrong += reaped < -1 || reaped > 1 || named < 0 || named > 1;
        for (int i = 0; i < 2; i++)
            if (at[i + 1] - at[i] > longest) longest = at[i + 1] - at[i];
    }
    for (int i = 0; i < 2; i++) {
        kill(tenants[i], SIGKILL);
        waitpid(tenants[i], NULL, 0);
    }
    printf("%llu\n", (unsigned long long)(longest / 1000000u));
    return wrong == 0 ? 0 : 1;
}
