#include "remote/worker/remote_stream.h"

#include "remote/wire/resume.h"
#include "remote/wire/tcp.h"
#include "remote/worker/control.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define HANDSHAKE_MS 5000
#define LOOK_MS      1000 /* largest delay in noticing that the grace has begun */

static bool socket_is_tcp(int fd)
{
    int domain = 0, type = 0;
    socklen_t capacity = sizeof domain;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &capacity) == 0 &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &capacity) == 0 &&
           (domain == AF_INET || domain == AF_INET6) && type == SOCK_STREAM;
}

static struct cb_tls *tls_accept(struct cb_connecting *guest)
{
    char why[CB_TLS_WHY] = "the descriptor that was handed over is not a TCP connection";
    struct cb_tls *t = NULL;
    if (socket_is_tcp(guest->passed)) {
        cb_tcp_prepare(guest->passed);
        t = cb_tls_server(guest->passed, guest->greeting.session, guest->greeting.key, HANDSHAKE_MS, why,
                          sizeof why);
    } else {
        close(guest->passed);
    }
    explicit_bzero(guest->greeting.key, sizeof guest->greeting.key);
    guest->passed = -1;
    if (!t) fprintf(stderr, "worker: %s\n", why);
    return t;
}

struct cb_stream cb_remote_stream(struct cb_connecting *guest)
{
    struct cb_tls *t = tls_accept(guest);
    return t ? cb_resume_server(t, HANDSHAKE_MS) : (struct cb_stream){NULL, -1, NULL};
}

static struct {
    struct cb_stream *stream;
    int control;
} follow;

static void *reconnections_run(void *nothing)
{
    struct cb_connecting guest;
    (void)nothing;
    prctl(PR_SET_NAME, "calabash-back");
    for (int came = 0; came >= 0;) {
        int left = cb_resume_left_ms(follow.stream);
        came = cb_control_receive(follow.control, &guest, left < 0 || left > LOOK_MS ? LOOK_MS : left + 1);
        struct cb_tls *t = came > 0 ? tls_accept(&guest) : NULL;
        if (t) cb_resume_reconnect(follow.stream, t, HANDSHAKE_MS);
    }
    return NULL;
}

bool cb_remote_follow(struct cb_stream *stream, int control)
{
    pthread_t thread;
    sigset_t all, before;
    follow.stream = stream;
    follow.control = control;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool made = pthread_create(&thread, NULL, reconnections_run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return made;
}
