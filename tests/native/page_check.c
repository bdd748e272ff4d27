/*
 * The page library on this machine: page_check USAGE_FILE. Two words move as one between threads, a dead process'
 * bytes are taken off, wrong counters are mended, and a file cut short ends the call and not the process.
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

#define EXPECT(is, should)                                                                              \
    do {                                                                                                \
        long long is_ = (long long)(is), should_ = (long long)(should);                                 \
        if (is_ != should_) {                                                                           \
            printf("line %d: %s is %lld, not %lld\n", __LINE__, #is, is_, should_);                     \
            exit(1);                                                                                    \
        }                                                                                               \
    } while (0)

static _Alignas(16) struct cb_pair word;

/* high is always 3 * low: a swap that succeeds has replaced a pair that was there, never halves of two. */
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

int main(int argc, char **argv)
{
    pthread_t thread[THREADS];
    if (argc != 2) return 2;
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
    EXPECT(cb_page_reap(usage, 3, 1, 8, 0), 0); /* another's */
    EXPECT(usage->device[0].used_bytes, 3072);
    EXPECT(cb_page_reap(usage, 3, 1, 7, 0), 1);
    EXPECT(usage->device[0].used_bytes, 0);
    usage->device[1].used_bytes = 512;
    EXPECT(cb_page_recount(usage), 1);
    EXPECT(usage->device[1].used_bytes, 0);
    EXPECT(cb_page_add32(&usage->device[2].waiting_count, 2), 2);
    EXPECT(ftruncate(fd, 0), 0);
    EXPECT(cb_page_reap(usage, 3, 1, 7, 0), -1);
    EXPECT(cb_page_recount(usage), -1);
    puts("good");
    return 0;
}
