#include "remote/worker/heartbeat.h"

#include "remote/wire/alive.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

static void *heartbeat_run(void *of)
{
    struct cb_stream *stream = of;
    prctl(PR_SET_NAME, "calabash-lives");
    for (;;) {
        struct timespec pause = {CB_ALIVE_EVERY_MS / 1000, CB_ALIVE_EVERY_MS % 1000 * 1000000};
        stream->kind->live(stream);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

bool cb_heartbeat_start(struct cb_stream *stream)
{
    pthread_t thread;
    sigset_t all, before;
    if (!stream->kind->live) return true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&thread, NULL, heartbeat_run, stream) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}
