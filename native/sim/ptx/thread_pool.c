/* The pool of threads for launches. A forked child starts with an empty pool. */
#define _GNU_SOURCE
#include "sim/ptx/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#define THREADS_MAX 64

struct entry {
    void *job;
    void (*work)(void *job);
    int inside;
    bool open; /* help is requested */
    struct entry *next;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct entry *entries;
    int threads, idle;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void pool_after_fork(void)
{
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.changed, NULL);
    pool.entries = NULL;
    pool.threads = pool.idle = 0;
}

static int processor_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) return 1;
    return CPU_COUNT(&set) < THREADS_MAX ? CPU_COUNT(&set) : THREADS_MAX;
}

static struct entry *entry_wanting_help(void)
{
    struct entry *e = pool.entries;
    while (e && !e->open)
        e = e->next;
    return e;
}

static void *pool_thread_run(void *argument)
{
    (void)argument;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        struct entry *e = entry_wanting_help();
        if (!e) {
            pool.idle++;
            pthread_cond_wait(&pool.changed, &pool.lock);
            pool.idle--;
            continue;
        }
        e->inside++;
        pthread_mutex_unlock(&pool.lock);
        e->work(e->job);
        pthread_mutex_lock(&pool.lock);
        e->open = false; /* no block is left to begin */
        e->inside--;
        pthread_cond_broadcast(&pool.changed);
    }
    return NULL;
}

static void pool_thread_start(void)
{
    if (pool.idle || pool.threads + 1 >= processor_count()) return;
    static bool registered;
    pthread_attr_t a;
    pthread_t thread;
    sigset_t all, before;
    if (!registered) registered = pthread_atfork(NULL, NULL, pool_after_fork) == 0;
    pthread_attr_init(&a);
    pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are delivered to the program's threads only */
    if (pthread_create(&thread, &a, pool_thread_run, NULL) == 0) pool.threads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&a);
}

void thread_pool_request_help(void *job)
{
    pthread_mutex_lock(&pool.lock);
    for (struct entry *e = pool.entries; e; e = e->next) {
        if (e->job != job) continue;
        if (!e->open && e->inside) continue; /* no block is left to begin */
        e->open = true;
        pool_thread_start();
        if (pool.idle) pthread_cond_broadcast(&pool.changed);
    }
    pthread_mutex_unlock(&pool.lock);
}

void thread_pool_run(void *job, void (*work)(void *job))
{
    struct entry e = {.job = job, .work = work};
    pthread_mutex_lock(&pool.lock);
    e.next = pool.entries;
    pool.entries = &e;
    pthread_mutex_unlock(&pool.lock);
    work(job);
    pthread_mutex_lock(&pool.lock);
    e.open = false;
    while (e.inside)
        pthread_cond_wait(&pool.changed, &pool.lock);
    for (struct entry **p = &pool.entries; *p; p = &(*p)->next) {
        if (*p != &e) continue;
        *p = e.next;
        break;
    }
    pthread_mutex_unlock(&pool.lock);
}
