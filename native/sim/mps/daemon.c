/* The control daemon's socket, and the clients that wait for an answer. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/mps/daemon.h"

#include "sim/mps/commands.h"
#include "sim/mps/log.h"
#include "sim/mps/servers.h"
#include "sim/mps/waiters.h"
#include "sim/node/mps.h"
#include "sim/node/slot.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define POLL_MS 5 /* poll interval while a client waits */

static void reply_send(int fd, const char *text, size_t length)
{
    while (length > 0) {
        ssize_t sent = send(fd, text, length < 4096 ? length : 4096, MSG_NOSIGNAL);
        if (sent <= 0) break;
        text += sent;
        length -= (size_t)sent;
    }
    close(fd);
}

/* Write the answer for a program that asked for its server; "" if it has to wait. */
static void server_answer(struct daemon *d, uint32_t uid, char *text, size_t size)
{
    struct server *v = server_for(d, uid);
    text[0] = 0;
    if (d->quitting) {
        snprintf(text, size, "error %d", SIM_MPS_CONNECTION_FAILED);
        return;
    }
    if (!v) {
        bool alone = true;
        /* one server at a time: another user's has to end first */
        for (uint32_t i = 0; i < SERVERS_MAX; i++) {
            struct server *other = &d->server[i];
            if (!other->pid) continue;
            alone = false;
            other->leaving = true;
        }
        if (alone && !server_start(d, uid)) snprintf(text, size, "error %d", SIM_MPS_CONNECTION_FAILED);
        return;
    }
    const struct sim_mps *m = server_state(d, v);
    if (!m || m->status == SIM_MPS_INITIALIZING) return;
    if (m->status == SIM_MPS_FAULT)
        snprintf(text, size, "error %d", SIM_MPS_SERVER_NOT_READY);
    else
        snprintf(text, size, "server %d %u %llu %llu", v->slot, d->sim.node->proc[v->slot].generation,
                 (unsigned long long)d->sim.file_device, (unsigned long long)d->sim.file_inode);
}

/* Check every waiter again; return true if any is still waiting. */
static bool waiters_poll(struct daemon *d)
{
    bool waiting = false;
    char text[128];
    for (uint32_t i = 0; i < WAITERS_MAX; i++) {
        struct waiter *w = &d->waiter[i];
        if (w->fd < 0) continue;
        char byte;
        bool gone = recv(w->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0, done = false;
        text[0] = 0;
        if (w->waits == WAITS_FOR_SERVER) {
            server_answer(d, w->uid, text, sizeof text);
            done = text[0] != 0;
        } else if (w->waits == WAITS_FOR_END_OF) {
            done = server_of(d, w->server) == NULL;
        } else {
            done = true;
            for (uint32_t k = 0; k < SERVERS_MAX; k++) {
                if (!d->server[k].pid) continue;
                done = false;
                if (w->until_ns && sim_now() >= w->until_ns) server_stop(&d->server[k], true);
            }
            gone = false; /* the user of `quit` may have disconnected */
        }
        waiting = waiting || !(done || gone);
        if (!done && !gone) continue;
        reply_send(w->fd, text, strlen(text));
        w->fd = -1;
    }
    return waiting;
}

/* Read "client SLOT", or a command by the daemon's own user or by root. */
static void message_read(struct daemon *d, int fd)
{
    static char out[REPLY_BYTES];
    char message[MESSAGE_BYTES];
    struct ucred peer = {0};
    socklen_t size = sizeof peer;
    struct timeval patience = {.tv_usec = 200000}; /* a slow peer must not block the others */
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    ssize_t got = recv(fd, message, sizeof message - 1, 0);
    if (got <= 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        close(fd);
        return;
    }
    message[got] = 0;
    if (strncmp(message, "client ", 7) == 0) {
        struct waiter w = {.fd = fd, .waits = WAITS_FOR_SERVER, .uid = (uint32_t)peer.uid};
        const struct server *v = server_for(d, w.uid);
        log_line("NEW CLIENT %d from user %u: %s", (int)peer.pid, w.uid,
                 v && v->slot >= 0 ? "Server already exists"
                                   : "Server is not ready, push client to pending list");
        if (!waiter_add(d, &w)) close(fd);
        return;
    }
    FILE *stream = fmemopen(out, sizeof out, "w");
    bool now = true;
    if (stream && peer.uid != 0 && peer.uid != geteuid())
        fprintf(stream, "Permission denied\n");
    else if (stream)
        now = command_run(d, message, fd, stream);
    long length = stream ? ftell(stream) : 0;
    if (stream) fclose(stream);
    if (now) reply_send(fd, out, length > 0 ? (size_t)length : 0);
}

static int socket_listen(struct daemon *d)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s/control", d->directory);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    unlink(a.sun_path); /* left by a daemon that died: the lock proves that none lives */
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || chmod(a.sun_path, 0666) != 0 ||
        listen(fd, 128) != 0) {
        fprintf(stderr, "Cannot listen at %s: %s\n", a.sun_path, strerror(errno));
        if (fd >= 0) close(fd);
        return -1;
    }
    return fd;
}

int daemon_open(struct daemon *d)
{
    char path[128];
    mkdir(d->directory, 0755);
    snprintf(path, sizeof path, "%s/control_lock", d->directory);
    /* held for the life of the daemon */
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock < 0) {
        fprintf(stderr, "Cannot use %s: %s\n", d->directory, strerror(errno));
        return 1;
    }
    if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
        fprintf(stderr, "An instance of this daemon is already running\n");
        return 1;
    }
    if (sim_open(&d->sim, NULL) != 0) {
        fprintf(stderr, "There is no simulated node: CALABASH_SIM names none\n");
        return 1;
    }
    struct stat st;
    if (fstat(d->sim.fd, &st) == 0) {
        d->sim.file_device = st.st_dev;
        d->sim.file_inode = st.st_ino;
    }
    for (uint32_t i = 0; i < WAITERS_MAX; i++)
        d->waiter[i].fd = -1;
    d->permille = SIM_MPS_WHOLE;
    d->listener = socket_listen(d);
    return d->listener < 0 ? 1 : 0;
}

static void pid_file_write(const struct daemon *d)
{
    char path[160];
    snprintf(path, sizeof path, "%s/nvidia-cuda-mps-control.pid", d->directory);
    FILE *file = fopen(path, "w");
    if (!file) return;
    fprintf(file, "%d\n", (int)getpid());
    fclose(file);
}

int daemon_run(struct daemon *d)
{
    char path[160];
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    signal(SIGPIPE, SIG_IGN);
    int signals = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
    log_open("control.log", "Control");
    log_line("Starting control daemon using socket %s/control", d->directory);
    log_line("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=%s", d->directory);
    pid_file_write(d);
    for (bool waiting = false;;) {
        struct pollfd fds[] = {{.fd = d->listener, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
        for (uint32_t i = 0; i < SERVERS_MAX; i++)
            waiting = waiting || (d->server[i].pid && (d->server[i].slot < 0 || d->server[i].leaving));
        poll(fds, 2, waiting ? POLL_MS : -1);
        struct signalfd_siginfo info;
        while (read(signals, &info, sizeof info) > 0)
            ;
        servers_poll(d);
        int fd = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) message_read(d, fd);
        waiting = waiters_poll(d);
        bool servers = false;
        for (uint32_t i = 0; i < SERVERS_MAX; i++)
            servers = servers || d->server[i].pid;
        if (d->quitting && !servers && !waiting) break;
    }
    log_line("Exit");
    snprintf(path, sizeof path, "%s/control", d->directory);
    unlink(path);
    snprintf(path, sizeof path, "%s/nvidia-cuda-mps-control.pid", d->directory);
    unlink(path);
    return 0;
}
