#include "remote/client/stream/callback_thread.h"

#include "remote/client/connection/listener.h"

#include <sys/prctl.h>

struct task {
    void (*run)(const struct cb_notified *n);
    struct cb_notified n;
    struct task *next;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct task *first, **last;
    bool started, running;
} tasks = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .last = &tasks.first};
static __thread bool in_task;

static void *callbacks_run(void *nothing)
{
    prctl(PR_SET_NAME, "calabash-host");
    in_task = true;
    pthread_mutex_lock(&tasks.lock);
    for (;;) {
        while (!tasks.first)
            pthread_cond_wait(&tasks.changed, &tasks.lock);
        struct task *t = tasks.first;
        tasks.first = t->next;
        if (!tasks.first) tasks.last = &tasks.first;
        tasks.running = true;
        pthread_mutex_unlock(&tasks.lock);
        t->run(&t->n);
        free(t);
        pthread_mutex_lock(&tasks.lock);
        tasks.running = false;
        pthread_cond_broadcast(&tasks.changed);
    }
    return nothing;
}

static void callbacks_after_fork(void)
{
    pthread_mutex_init(&tasks.lock, NULL);
    pthread_cond_init(&tasks.changed, NULL);
    tasks.started = tasks.running = false;
    tasks.first = NULL;
    tasks.last = &tasks.first;
}

bool cb_callback_queue(void (*run)(const struct cb_notified *n), const struct cb_frame *frame,
                       CUresult result, uint64_t word)
{
    struct task *t = malloc(sizeof *t);
    if (!t) return false;
    *t = (struct task){.run = run, .n = {frame->seq, (frame->flags & CB_FRAME_KEPT) != 0, result, word}};
    pthread_mutex_lock(&tasks.lock);
    *tasks.last = t;
    tasks.last = &t->next;
    if (!tasks.started) {
        tasks.started = cb_thread_start(callbacks_run);
        pthread_atfork(NULL, NULL, callbacks_after_fork);
    }
    bool ok = tasks.started;
    pthread_cond_broadcast(&tasks.changed);
    pthread_mutex_unlock(&tasks.lock);
    return ok;
}

void cb_callbacks_wait(void)
{
    if (in_task) return;
    pthread_mutex_lock(&tasks.lock);
    while (tasks.first || tasks.running)
        pthread_cond_wait(&tasks.changed, &tasks.lock);
    pthread_mutex_unlock(&tasks.lock);
}
