/*
 * calabash-worker FD: serves the one program at the other end of a connected socket, then ends. It is a process of its
 * own, in the slice of that program: what it holds, and what becomes of it, concerns nobody else.
 *
 * calabash-worker --listen FD: the host of a lease: makes such a process for each program that connects to a socket.
 */
#include "remote/wire/tcp.h"
#include "remote/worker/channel.h"
#include "remote/worker/children.h"
#include "remote/worker/driver.h"
#include "remote/worker/graph.h"
#include "remote/worker/host.h"
#include "remote/worker/output.h"
#include "remote/worker/pulse.h"
#include "remote/worker/remote.h"
#include "remote/worker/sandbox.h"
#include "remote/worker/session.h"
#include "remote/worker/shelf.h"

#include <getopt.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

static const char usage[] =
    "usage: calabash-worker FD\n"
    "       calabash-worker --listen FD [--owner FD] [--sessions N] [--broker-uid UID]\n";

static int serve(struct cb_stream stream, int control)
{
    struct cb_stream *kept = cb_channel_use(stream);
    if (control >= 0 && !cb_remote_follow(kept, control)) return 1;
    if (!cb_pulse_start(kept)) return 1;
    cb_graph_follow();
    cb_serve();
}

/* A worker of a host. Nothing of the program is read before we can do nothing else any more. */
static int work(struct cb_guest *guest, int control)
{
    bool local = guest->greeting.kind == CB_GREETING_LOCAL;
    cb_shelf_open(); /* what it may not open later */
    if (!cb_output_open() || !cb_driver_open() || !cb_sandbox_enter()) {
        if (local) cb_greeting_answer(guest->fd, CB_GREETING_FAILED);
        return 1;
    }
    if (!local) close(guest->fd); /* its host answers there */
    struct cb_stream stream = local ? cb_greeting_stream(guest) : cb_remote_stream(guest);
    if (stream.kind) return serve(stream, control);
    if (local) cb_greeting_answer(guest->fd, CB_GREETING_MALFORMED);
    return 1;
}

/* A connection that somebody has made for us: a Unix socket begins with a greeting. */
static int serve_one(int fd)
{
    struct cb_guest guest = {.fd = fd, .passed = -1};
    int domain = 0;
    socklen_t bytes = sizeof domain;
    if (!cb_output_open() || !cb_driver_open()) return 1;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) < 0) {
        perror("worker: the connection");
        return 2;
    }
    if (domain == AF_UNIX) {
        if (!cb_greeting_await(&guest, CB_GREETING_MS) || guest.greeting.kind != CB_GREETING_LOCAL) return 1;
        struct cb_stream stream = cb_greeting_stream(&guest);
        return stream.kind ? serve(stream, -1) : 1;
    }
    cb_tcp_prepare(fd);
    return serve(cb_stream_plain(fd), -1);
}

static bool number(const char *text, long most, long *out)
{
    char *end = NULL;
    *out = strtol(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && *out <= most;
}

/* A burst of connections needs as many descriptors as we may have. */
static void raise_limit(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0) return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

int main(int argc, char **argv)
{
    static const struct option known[] = {{"listen", required_argument, NULL, 'l'},
                                          {"owner", required_argument, NULL, 'o'},
                                          {"sessions", required_argument, NULL, 's'},
                                          {"broker-uid", required_argument, NULL, 'b'},
                                          {0}};
    long listener = -1, owner = -1, sessions = 64, broker = -1, fd = -1;
    bool good = true;
    for (int c; good && (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        good = c == 'l'   ? number(optarg, 1 << 20, &listener)
               : c == 'o' ? number(optarg, 1 << 20, &owner)
               : c == 's' ? number(optarg, CB_SESSIONS_MAX, &sessions) && sessions > 0
               : c == 'b' ? number(optarg, UINT32_MAX - 1, &broker)
                          : false;
    }
    if (!cb_sandbox_close_memory()) return 1;
    if (good && listener >= 0 && optind == argc) {
        struct cb_host_options options = {(int)listener, (int)owner, (unsigned)sessions, broker};
        raise_limit();
        return cb_host_run(&options, work);
    }
    if (good && listener < 0 && argc == 2 && number(argv[1], 1 << 20, &fd)) return serve_one((int)fd);
    fputs(usage, stderr);
    return 2;
}
