/*
 * A tenant that forges its counters: maps the usage page of its own allocation and overwrites it, again and
 * again.
 *
 *   page_forger USAGE-FILE FIELD...
 *
 * FIELD: charged (writes 0), bucket (a large credit), inflight (no work in flight), demand (always in demand),
 * kernel (its kernels take ten seconds), boast (charges jump forward and back again and again), back (they
 * start high and jump back once, after LATER rounds).
 */
#define _GNU_SOURCE
#include "page/page.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define HIGH  ((uint64_t)1 << 50)
#define LATER 5000u /* rounds: more than a second */

#define STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void forge(struct cb_usage_device *d, const char *what, unsigned round)
{
    if (strcmp(what, "charged") == 0)
        STORE(&d->charged_ns, 0);
    else if (strcmp(what, "bucket") == 0)
        STORE(&d->bucket_ns, (int64_t)1 << 60);
    else if (strcmp(what, "inflight") == 0) {
        STORE(&d->inflight_ns, 0);
        STORE(&d->busy_until_ns, 0);
    } else if (strcmp(what, "demand") == 0) {
        STORE(&d->demand_ns, now_ns());
        STORE(&d->waiting_count, 1);
    } else if (strcmp(what, "kernel") == 0)
        STORE(&d->kernel_ns_max, 10000000000u);
    else if (strcmp(what, "boast") == 0)
        STORE(&d->charged_ns, round % 2 ? HIGH : 0);
    else if (strcmp(what, "back") == 0)
        STORE(&d->charged_ns, round < LATER ? HIGH : 0);
}

int main(int argc, char **argv)
{
    int file = argc > 2 ? open(argv[1], O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return 64;
    struct cb_usage *usage = mmap(NULL, sizeof *usage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (usage == MAP_FAILED) return 65;
    puts("ready");
    fflush(stdout);
    for (unsigned round = 0; getppid() != 1; round++) {
        for (int i = 2; i < argc; i++)
            forge(&usage->device[0], argv[i], round);
        usleep(200);
    }
    return 0;
}
