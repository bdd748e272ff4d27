#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "remote/worker/host.h"

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
#include <time.h>
#include <unistd.h>

#define GUESTS_MAX   256
#define BACKLOG      4096
#define EXHAUSTED_MS 100 /* how long nobody is let in when there are no descriptors */

static const struct cb_host_options *options;
static cb_host_work *work;
static int signals;
static sigset_t before;
static bool ending;
static int64_t shut_until_ms; /* the door, for want of descriptors */

static struct waiting {
    struct cb_guest guest;
    int64_t until_ms;
} waiting[GUESTS_MAX];
static size_t guests;

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void forget(size_t i)
{
    if (waiting[i].guest.fd >= 0) close(waiting[i].guest.fd);
    if (waiting[i].guest.passed >= 0) close(waiting[i].guest.passed);
    memset(&waiting[i].guest, 0, sizeof waiting[i].guest); /* there was a key in it */
    waiting[i] = waiting[--guests];
}

/* ---- a worker's own process ---- */

static _Noreturn void be_worker(struct cb_guest *guest, int control, pid_t host)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != host) _exit(1); /* it has ended meanwhile */
    prctl(PR_SET_NAME, "calabash-worker");
    close(options->listener);
    close(signals);
    if (options->owner >= 0) close(options->owner);
    for (size_t i = 0; i < guests; i++) {
        if (&waiting[i].guest == guest) continue;
        close(waiting[i].guest.fd);
        if (waiting[i].guest.passed >= 0) close(waiting[i].guest.passed);
    }
    cb_children_forget();
    struct cb_guest own = *guest;
    memset(waiting, 0, sizeof waiting); /* keys of others are not ours to know */
    sigprocmask(SIG_SETMASK, &before, NULL);
    exit(work(&own, control));
}

static enum cb_greeting_status start(struct cb_guest *guest)
{
    int pair[2] = {-1, -1};
    const uint8_t *session = guest->greeting.kind == CB_GREETING_HANDOVER ? guest->greeting.session : NULL;
    if (cb_children_count() >= options->sessions) return CB_GREETING_FULL;
    if (session && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) return CB_GREETING_FAILED;
    pid_t host = getpid(), child = fork();
    if (child == 0) {
        if (pair[0] >= 0) close(pair[0]);
        be_worker(guest, pair[1], host);
    }
    if (pair[1] >= 0) close(pair[1]);
    if (child > 0 && cb_children_add(child, session, pair[0])) return CB_GREETED;
    fprintf(stderr, "worker: cannot start one: %s\n", strerror(errno));
    if (child > 0) kill(child, SIGKILL);
    if (pair[0] >= 0) close(pair[0]);
    return CB_GREETING_FAILED;
}

static bool may_hand_over(int fd)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0) return false;
    return peer.uid == 0 || peer.uid == geteuid() ||
           (options->broker_uid >= 0 && peer.uid == (uid_t)options->broker_uid);
}

static enum cb_greeting_status serve(struct cb_guest *guest)
{
    if (guest->greeting.kind != CB_GREETING_HANDOVER) return start(guest);
    if (!may_hand_over(guest->fd)) return CB_GREETING_FORBIDDEN;
    switch (cb_children_hand(guest)) {
    case CB_HANDED:
        return CB_GREETED;
    case CB_NOT_TAKEN:
        return CB_GREETING_FAILED;
    default:
        return start(guest);
    }
}

/* ---- guests ---- */

static void look_at(size_t i)
{
    enum cb_greeting_status status = CB_GREETING_MALFORMED;
    struct cb_guest *guest = &waiting[i].guest;
    enum cb_greeting_progress progress = cb_greeting_take(guest, &status);
    if (progress == CB_GREETING_MORE && now_ms() < waiting[i].until_ms) return;
    if (progress == CB_GREETING_WHOLE) status = serve(guest);
    if (status != CB_GREETED || guest->greeting.kind == CB_GREETING_HANDOVER)
        cb_greeting_answer(guest->fd, status);
    forget(i);
}

static void let_in(void)
{
    while (guests < GUESTS_MAX) {
        int fd = accept4(options->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS))
            shut_until_ms = now_ms() + EXHAUSTED_MS;
        if (fd < 0) return; /* nobody is there, or who was there has left */
        waiting[guests++] = (struct waiting){{.fd = fd, .passed = -1}, now_ms() + CB_GREETING_MS};
    }
}

static int patience_ms(void)
{
    int64_t now = now_ms(), first = INT64_MAX;
    if (shut_until_ms > now) first = shut_until_ms;
    for (size_t i = 0; i < guests; i++) {
        if (waiting[i].until_ms < first) first = waiting[i].until_ms;
    }
    return first == INT64_MAX ? -1 : first <= now ? 0 : (int)(first - now);
}

static void take_signals(void)
{
    struct signalfd_siginfo what;
    while (read(signals, &what, sizeof what) == sizeof what)
        ending = ending || what.ssi_signo != SIGCHLD;
    cb_children_reap();
}

static void once(void)
{
    struct pollfd look[3 + GUESTS_MAX];
    size_t there = guests;
    bool open = guests < GUESTS_MAX && now_ms() >= shut_until_ms;
    look[0] = (struct pollfd){signals, POLLIN, 0};
    look[1] = (struct pollfd){options->owner, POLLIN, 0}; /* poll leaves out what is negative */
    look[2] = (struct pollfd){open ? options->listener : -1, POLLIN, 0};
    for (size_t i = 0; i < there; i++)
        look[3 + i] = (struct pollfd){waiting[i].guest.fd, POLLIN, 0};
    if (poll(look, 3 + there, patience_ms()) < 0) return;
    if (look[0].revents) take_signals();
    if (look[1].revents) {
        char none;
        ending = ending || read(options->owner, &none, 1) <= 0;
    }
    for (size_t i = there; i-- > 0;) { /* the last one takes the place of one that is done */
        if (look[3 + i].revents || now_ms() >= waiting[i].until_ms) look_at(i);
    }
    if (look[2].revents) let_in();
}

int cb_host_run(const struct cb_host_options *o, cb_host_work *w)
{
    sigset_t ours;
    options = o;
    work = w;
    sigemptyset(&ours);
    sigaddset(&ours, SIGCHLD);
    sigaddset(&ours, SIGTERM);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGHUP);
    sigprocmask(SIG_BLOCK, &ours, &before);
    signals = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0 || fcntl(o->listener, F_SETFL, O_NONBLOCK) < 0 || listen(o->listener, BACKLOG) < 0) {
        fprintf(stderr, "worker: cannot listen: %s\n", strerror(errno));
        return 1;
    }
    while (!ending)
        once();
    cb_children_end();
    return 0;
}
