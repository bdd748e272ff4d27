/*
 * Test of the page library on this machine: page_check USAGE_FILE. Orders are seen whole, two words change as
 * one between threads, a dead process's bytes are removed, wrong counters are repaired, and a truncated file
 * ends the call and not the process.
 */
#define _GNU_SOURCE
#include "page/pagelib.h"
#include "page/reap.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define THREADS 4
#define TURNS   20000u
#define ORDERS  20000u

#define EXPECT(is, should)                                                                              \
    do {                                                                                                \
        long long is_ = (long long)(is), should_ = (long long)(should);                                 \
        if (is_ != should_) {                                                                           \
            printf("line %d: %s is %lld, not %lld\n", __LINE__, #is, is_, should_);                     \
            exit(1);                                                                                    \
        }                                                                                               \
    } while (0)

static _Alignas(16) struct cb_pair word;

/* high is always 3 * low: a successful swap has replaced a pair that existed, never halves of two. */
static void *count(void *unused)
{
    (void)unused;
    for (unsigned i = 0; i < TURNS; i++) {
        struct cb_pair was, seen;
        do {
            was = seen = cb_pair_read(&word);
        } while (!cb_pair_swap(&word, &seen, (struct cb_pair){was.low + 1, 3 * (was.low + 1)}));
        EXPECT(was.high, 3 * was.low);
    }
    return NULL;
}

static struct cb_limits_device device;
static int over;

/* Read as the shim does: the result must be one order, all of whose figures are the same number. */
static void *look(void *unused)
{
    unsigned seen = 0;
    (void)unused;
    while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
        uint32_t order = __atomic_load_n(&device.word, __ATOMIC_ACQUIRE);
        uint32_t neighbours = __atomic_load_n(&device.neighbours, __ATOMIC_RELAXED);
        struct cb_plan plan = device.plan, previous = device.previous;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if ((order & 1) || __atomic_load_n(&device.word, __ATOMIC_RELAXED) != order || neighbours < 2) continue;
        EXPECT(plan.from_ns, neighbours);
        EXPECT(plan.start_ns, neighbours);
        EXPECT(plan.end_ns, neighbours);
        EXPECT(plan.period_ns, neighbours);
        EXPECT(previous.from_ns, neighbours - 1);
        EXPECT(previous.period_ns, neighbours - 1);
        seen++;
    }
    EXPECT(seen > 0, 1);
    return NULL;
}

/* unreported_ns is never ahead of seen_ns. */
static void *charge(void *unused)
{
    (void)unused;
    while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
        uint64_t found[2];
        cb_page_charges(&device, found);
        EXPECT(found[0] <= found[1], 1);
    }
    return NULL;
}

static void orders(void)
{
    pthread_t readers[2];
    EXPECT(pthread_create(&readers[0], NULL, look, NULL), 0);
    EXPECT(pthread_create(&readers[1], NULL, charge, NULL), 0);
    for (uint32_t n = 1; n <= ORDERS; n++) {
        cb_page_set_gate(&device, CB_GATE_TURN, n, &(struct cb_plan){n, n, n, n});
        cb_page_add_seen(&device, n, n);
        if (n % 100 == 0) usleep(100); /* readers find a complete one */
    }
    __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < 2; i++)
        EXPECT(pthread_join(readers[i], NULL), 0);
    EXPECT(device.word, 2 * ORDERS);
    cb_page_set_gate(&device, CB_GATE_RATE, 0, NULL);
    EXPECT(device.plan.from_ns, ORDERS);
    cb_page_set_gate(&device, CB_GATE_TURN, 1, &(struct cb_plan){1, 1, 1, 1});
    EXPECT(device.previous.period_ns, 0);
}

int main(int argc, char **argv)
{
    pthread_t thread[THREADS];
    if (argc != 2) return 2;
    orders();
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&thread[i], NULL, count, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_join(thread[i], NULL), 0);
    EXPECT(word.low, THREADS * TURNS);
    EXPECT(word.high, 3 * THREADS * TURNS);

    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    EXPECT(ftruncate(fd, sizeof(struct cb_usage)), 0);
    struct cb_usage *usage = mmap(NULL, sizeof *usage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT(usage != MAP_FAILED, 1);
    EXPECT(cb_proc_change(&usage->proc[3], CB_PROC_FREE, 0, CB_PROC_LIVE, 1, 7), 1);
    EXPECT(cb_page_set_host_pid(usage, 3, 1, 77), 1);
    EXPECT(usage->proc[3].host_pid, 77);
    EXPECT(cb_charge_add(usage, 3, 0, 4096, 8192), 1);
    EXPECT(cb_charge_add(usage, 3, 0, 8192, 8192), 0);
    EXPECT(cb_charge_sub(usage, 3, 0, 1024), 1024);
    EXPECT(cb_page_reap(usage, 3, 1, 8, 0), 0); /* another process's slot */
    EXPECT(usage->device[0].used_bytes, 3072);
    EXPECT(cb_page_reap(usage, 3, 1, 7, 0), 1);
    EXPECT(usage->device[0].used_bytes, 0);
    EXPECT(ftruncate(fd, 0), 0);
    EXPECT(cb_page_reap(usage, 3, 1, 7, 0), -1);
    puts("good");
    return 0;
}
