/*
 * Many processes change the counters of one container while others are killed at random: charge_storm KILLS
 * WORKERS SEED.
 *
 * Checks that the counter never exceeds the limit, that every reap removes all bytes, and that at the end all
 * counters are zero. Prints the number of transactions done and the highest value seen.
 */
#define _GNU_SOURCE
#include "page/reap.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT             (64ull << 20)
#define WORKERS_MAX       64
#define RECLAIM_CALLS_MAX 1000

static struct cb_usage *usage;
static volatile uint64_t *transactions;

static void work(uint32_t slot, unsigned seed)
{
    uint64_t held[16] = {0};
    for (;;) {
        unsigned i = (unsigned)rand_r(&seed) % 16u;
        if (held[i] == 0) {
            uint64_t bytes = cb_round_unit(1 + (uint64_t)rand_r(&seed) % (2u << 20));
            if (cb_charge_add(usage, slot, 0, bytes, LIMIT)) held[i] = bytes;
        } else if (cb_charge_sub(usage, slot, 0, held[i]) == held[i]) {
            held[i] = 0;
        } else {
            _exit(3); /* another process took our bytes */
        }
        __atomic_fetch_add(transactions, 1, __ATOMIC_RELAXED);
    }
}

static pid_t spawn(uint32_t slot, unsigned seed)
{
    struct cb_usage_proc *proc = &usage->proc[slot];
    uint32_t generation = proc->generation;
    if (!cb_proc_change(proc, CB_PROC_FREE, generation, CB_PROC_LIVE, generation + 1, 1)) exit(2);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG,
              SIGKILL); /* a test that gives up must not leave workers, which would also hold its pipe */
        work(slot, seed);
    }
    return pid;
}

/* As the agent does: "ask again later" is a valid result, the tries of a single call are bounded. */
static bool reaped(uint32_t slot)
{
    for (int i = 0; i < RECLAIM_CALLS_MAX; i++)
        if (cb_reap_slot(usage, slot, usage->proc[slot].generation)) return true;
    return false;
}

int main(int count, char **arguments)
{
    pid_t pids[WORKERS_MAX];
    uint64_t highest = 0;
    if (count != 4) return 2;
    long kills = atol(arguments[1]);
    unsigned workers = (unsigned)atoi(arguments[2]), seed = (unsigned)atoi(arguments[3]);
    usage = mmap(NULL, sizeof(*usage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    transactions = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (uint32_t slot = 0; slot < workers; slot++)
        pids[slot] = spawn(slot, seed + slot);
    for (long i = 0; i < kills + (long)workers; i++) {
        uint32_t slot = i < kills ? (uint32_t)rand_r(&seed) % workers : (uint32_t)(i - kills);
        struct timespec pause = {.tv_nsec = rand_r(&seed) % 300000};
        int status = 0;
        if (i < kills) nanosleep(&pause, NULL);
        uint64_t used = usage->device[0].used_bytes;
        highest = used > highest ? used : highest;
        kill(pids[slot], SIGKILL);
        waitpid(pids[slot], &status, 0);
        if (!WIFSIGNALED(status)) {
            printf("worker %u ended with status %x\n", slot, (unsigned)status);
            return 1;
        }
        if (!reaped(slot)) {
            printf("slot %u cannot be reaped\n", slot);
            return 1;
        }
        if (usage->proc[slot].share[0].used_bytes != 0) {
            printf("slot %u keeps %llu bytes\n", slot,
                   (unsigned long long)usage->proc[slot].share[0].used_bytes);
            return 1;
        }
        if (i < kills) pids[slot] = spawn(slot, (unsigned)rand_r(&seed));
    }
    if (usage->device[0].used_bytes != 0 || usage->device[0].peak_bytes > LIMIT || highest > LIMIT) {
        printf("left %llu, peak %llu\n", (unsigned long long)usage->device[0].used_bytes,
               (unsigned long long)usage->device[0].peak_bytes);
        return 1;
    }
    printf("%llu %llu\n", (unsigned long long)*transactions, (unsigned long long)highest);
    return 0;
}
