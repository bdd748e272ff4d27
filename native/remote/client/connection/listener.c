#include "remote/client/connection/listener.h"

#include "remote/client/connection/answers.h"
#include "remote/client/connection/command_buffer.h"

#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#define PAUSE_NS  200000
#define PAUSES_NS 2000000 /* while no thread waits: notices must not fill the connection */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    bool started;
    int expected, slowly;
} listener = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

bool cb_thread_start(void *(*run)(void *))
{
    pthread_t thread;
    sigset_t all, before;
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's signals are not delivered to it */
    bool started = pthread_create(&thread, &detached, run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    return started;
}

static void *listener_run(void *nothing)
{
    prctl(PR_SET_NAME, "calabash-listen");
    while (!__atomic_load_n(&cb_command_buffer.gone, __ATOMIC_RELAXED)) {
        pthread_mutex_lock(&listener.lock);
        while (listener.expected <= 0 && listener.slowly <= 0)
            pthread_cond_wait(&listener.more, &listener.lock);
        struct timespec pause = {0, listener.expected > 0 ? PAUSE_NS : PAUSES_NS};
        pthread_mutex_unlock(&listener.lock);
        nanosleep(&pause, NULL);
        cb_answers_poll();
    }
    return nothing;
}

static void listener_adjust(int *what, int more)
{
    pthread_mutex_lock(&listener.lock);
    if (more > 0 && !listener.started) listener.started = cb_thread_start(listener_run);
    *what += more;
    if (more > 0 && *what == more) pthread_cond_signal(&listener.more);
    pthread_mutex_unlock(&listener.lock);
}

void cb_listener_expect(int more)
{
    listener_adjust(&listener.expected, more);
}

void cb_listener_expect_slowly(int more)
{
    listener_adjust(&listener.slowly, more);
}

void cb_listener_after_fork(void)
{
    pthread_mutex_init(&listener.lock, NULL);
    pthread_cond_init(&listener.more, NULL);
    listener.started = false;
    listener.expected = listener.slowly = 0;
}
