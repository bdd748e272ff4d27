#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "remote/worker/host.h"

#include "remote/wire/tls.h"
#include "remote/worker/children.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 256
#define BACKLOG         4096
#define EXHAUSTED_MS    100 /* pause in accepting connections when there are no free descriptors */

#ifndef SO_PEERPIDFD /* Linux 6.5; older headers do not have it */
#define SO_PEERPIDFD 77
#endif

static const struct cb_host_options *options;
static cb_host_work *worker_main;
static int signals;
static sigset_t signals_before;
static bool ending;
static int64_t accept_paused_until_ms; /* no connections are accepted until then, for want of descriptors */

static struct waiting {
    struct cb_connecting guest;
    int64_t until_ms;
    bool whole; /* its greeting was read, and it waits for the end of workers (cb_children_are_ending) */
} waiting[CONNECTIONS_MAX];
static size_t connection_count;

static int64_t monotonic_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void connection_drop(size_t i)
{
    if (waiting[i].guest.fd >= 0) close(waiting[i].guest.fd);
    if (waiting[i].guest.passed >= 0) close(waiting[i].guest.passed);
    memset(&waiting[i].guest, 0, sizeof waiting[i].guest); /* it contained a key */
    waiting[i] = waiting[--connection_count];
}

/* ---- in a worker's own process ---- */

static _Noreturn void worker_process(struct cb_connecting *guest, int control, pid_t host)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != host) _exit(1); /* the host has ended meanwhile */
    prctl(PR_SET_NAME, "calabash-worker");
    close(options->listener);
    close(signals);
    if (options->owner >= 0) close(options->owner);
    for (size_t i = 0; i < connection_count; i++) {
        if (&waiting[i].guest == guest) continue;
        close(waiting[i].guest.fd);
        if (waiting[i].guest.passed >= 0) close(waiting[i].guest.passed);
    }
    cb_children_drop();
    struct cb_connecting own = *guest;
    memset(waiting, 0, sizeof waiting); /* this worker must not know other sessions' keys */
    sigprocmask(SIG_SETMASK, &signals_before, NULL);
    exit(worker_main(&own, control));
}

/* Before the first fork that needs it: workers share its memory, and their sandbox keeps them from files. */
static bool tls_is_loaded(void)
{
    char why[CB_TLS_WHY];
    bool loaded = cb_tls_load(why, sizeof why);
    if (!loaded) fprintf(stderr, "worker: %s\n", why);
    return loaded;
}

/* Return a pidfd of the program at the other end of a Unix socket; -1 if it is not known. */
static int program_open(int fd)
{
    int program = -1;
    socklen_t bytes = sizeof program;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &program, &bytes) == 0) return program;
    struct ucred peer;
    bytes = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0 || peer.pid <= 0) return -1;
    return (int)syscall(SYS_pidfd_open, peer.pid, 0);
}

static enum cb_greeting_status worker_start(struct cb_connecting *guest)
{
    int pair[2] = {-1, -1};
    const uint8_t *session = guest->greeting.kind == CB_GREETING_HANDOVER ? guest->greeting.session : NULL;
    if (cb_children_count() >= options->sessions) return CB_GREETING_FULL;
    if (session && !tls_is_loaded()) return CB_GREETING_FAILED;
    if (session && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) return CB_GREETING_FAILED;
    pid_t host = getpid(), child = fork();
    if (child == 0) {
        if (pair[0] >= 0) close(pair[0]);
        worker_process(guest, pair[1], host);
    }
    if (pair[1] >= 0) close(pair[1]);
    int program = child > 0 && !session ? program_open(guest->fd) : -1;
    if (child > 0 && cb_children_add(child, session, pair[0], program)) return CB_GREETED;
    fprintf(stderr, "worker: cannot start a worker process: %s\n", strerror(errno));
    if (child > 0) kill(child, SIGKILL);
    if (pair[0] >= 0) close(pair[0]);
    if (program >= 0) close(program);
    return CB_GREETING_FAILED;
}

static bool peer_may_hand_over(int fd)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0) return false;
    return peer.uid == 0 || peer.uid == geteuid() ||
           (options->broker_uid >= 0 && peer.uid == (uid_t)options->broker_uid);
}

static enum cb_greeting_status greeting_serve(struct cb_connecting *guest)
{
    if (guest->greeting.kind != CB_GREETING_HANDOVER) return worker_start(guest);
    if (!peer_may_hand_over(guest->fd)) return CB_GREETING_FORBIDDEN;
    switch (cb_children_hand_over(guest)) {
    case CB_HANDED:
        return CB_GREETED;
    case CB_NOT_TAKEN:
        return CB_GREETING_FAILED;
    default:
        return worker_start(guest);
    }
}

/* ---- connections ---- */

/*
 * Return true if the worker of a program must wait: a program that starts after another one has ended must find
 * the memory of that one free, as programs do that use the device themselves.
 */
static bool must_wait(struct waiting *w)
{
    if (w->guest.greeting.kind != CB_GREETING_LOCAL || !cb_children_are_ending(monotonic_ms())) return false;
    if (!w->whole) w->until_ms = monotonic_ms() + CB_ENDING_MS;
    w->whole = true;
    return monotonic_ms() < w->until_ms;
}

static void connection_poll(size_t i)
{
    enum cb_greeting_status status = CB_GREETING_MALFORMED;
    struct cb_connecting *guest = &waiting[i].guest;
    enum cb_greeting_progress progress =
        waiting[i].whole ? CB_GREETING_WHOLE : cb_greeting_take(guest, &status);
    if (progress == CB_GREETING_MORE && monotonic_ms() < waiting[i].until_ms) return;
    if (progress == CB_GREETING_WHOLE && must_wait(&waiting[i])) return;
    if (progress == CB_GREETING_WHOLE) status = greeting_serve(guest);
    if (status != CB_GREETED || guest->greeting.kind == CB_GREETING_HANDOVER)
        cb_greeting_answer(guest->fd, status);
    connection_drop(i);
}

static void connections_accept(void)
{
    while (connection_count < CONNECTIONS_MAX) {
        int fd = accept4(options->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS))
            accept_paused_until_ms = monotonic_ms() + EXHAUSTED_MS;
        if (fd < 0) return; /* no pending connection, or the peer has closed it */
        waiting[connection_count++] =
            (struct waiting){{.fd = fd, .passed = -1}, monotonic_ms() + CB_GREETING_MS, false};
    }
}

static int next_timeout_ms(void)
{
    int64_t now = monotonic_ms(), first = INT64_MAX;
    if (accept_paused_until_ms > now) first = accept_paused_until_ms;
    for (size_t i = 0; i < connection_count; i++) {
        if (waiting[i].until_ms < first) first = waiting[i].until_ms;
    }
    return first == INT64_MAX ? -1 : first <= now ? 0 : (int)(first - now);
}

static void signals_read(void)
{
    struct signalfd_siginfo what;
    while (read(signals, &what, sizeof what) == sizeof what)
        ending = ending || what.ssi_signo != SIGCHLD;
    cb_children_reap();
}

static void host_poll_once(void)
{
    struct pollfd look[3 + CONNECTIONS_MAX];
    size_t there = connection_count;
    bool open = connection_count < CONNECTIONS_MAX && monotonic_ms() >= accept_paused_until_ms;
    look[0] = (struct pollfd){signals, POLLIN, 0};
    look[1] = (struct pollfd){options->owner, POLLIN, 0}; /* poll ignores negative descriptors */
    look[2] = (struct pollfd){open ? options->listener : -1, POLLIN, 0};
    for (size_t i = 0; i < there; i++)
        look[3 + i] = (struct pollfd){waiting[i].whole ? -1 : waiting[i].guest.fd, POLLIN, 0};
    if (poll(look, 3 + there, next_timeout_ms()) < 0) return;
    if (look[0].revents) signals_read();
    if (look[1].revents) {
        char none;
        ending = ending || read(options->owner, &none, 1) <= 0;
    }
    for (size_t i = there; i-- > 0;) { /* the last entry takes the place of a finished one */
        if (waiting[i].whole || look[3 + i].revents || monotonic_ms() >= waiting[i].until_ms)
            connection_poll(i);
    }
    if (look[2].revents) connections_accept();
}

int cb_host_run(const struct cb_host_options *o, cb_host_work *w)
{
    sigset_t ours;
    options = o;
    worker_main = w;
    sigemptyset(&ours);
    sigaddset(&ours, SIGCHLD);
    sigaddset(&ours, SIGTERM);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGHUP);
    sigprocmask(SIG_BLOCK, &ours, &signals_before);
    signals = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0 || fcntl(o->listener, F_SETFL, O_NONBLOCK) < 0 || listen(o->listener, BACKLOG) < 0) {
        fprintf(stderr, "worker: cannot listen: %s\n", strerror(errno));
        return 1;
    }
    while (!ending)
        host_poll_once();
    cb_children_end();
    return 0;
}
