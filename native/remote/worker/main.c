/*
 * Entry of calabash-worker.
 *
 * calabash-worker FD: serves the one program at the other end of a connected socket, then ends. It is a process
 * of its own, in the slice of that program, so that a failure affects no other program.
 *
 * calabash-worker --listen FD: the host of a lease: starts such a process for each program that connects to a
 * socket.
 */
#include "remote/wire/tcp.h"
#include "remote/worker/channel.h"
#include "remote/worker/children.h"
#include "remote/worker/driver.h"
#include "remote/worker/graph.h"
#include "remote/worker/heartbeat.h"
#include "remote/worker/host.h"
#include "remote/worker/image_store.h"
#include "remote/worker/output.h"
#include "remote/worker/remote_stream.h"
#include "remote/worker/sandbox.h"
#include "remote/worker/session.h"

#include <getopt.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

static const char usage[] =
    "usage: calabash-worker FD\n"
    "       calabash-worker --listen FD [--owner FD] [--sessions N] [--broker-uid UID]\n";

static int stream_serve(struct cb_stream stream, int control)
{
    struct cb_stream *kept = cb_channel_use(stream);
    if (control >= 0 && !cb_remote_follow(kept, control)) return 1;
    if (!cb_heartbeat_start(kept)) return 1;
    cb_graph_follow();
    cb_serve();
}

/* Run a worker of a host. Nothing of the program is read before the process is sandboxed. */
static int worker_run(struct cb_connecting *guest, int control)
{
    bool local = guest->greeting.kind == CB_GREETING_LOCAL;
    cb_image_store_open(); /* opened now, because the sandbox forbids it later */
    if (!cb_output_open() || !cb_driver_open() || !cb_sandbox_enter()) {
        if (local) cb_greeting_answer(guest->fd, CB_GREETING_FAILED);
        return 1;
    }
    if (!local) close(guest->fd); /* the host answers on it */
    struct cb_stream stream = local ? cb_greeting_stream(guest) : cb_remote_stream(guest);
    if (stream.kind) return stream_serve(stream, control);
    if (local) cb_greeting_answer(guest->fd, CB_GREETING_MALFORMED);
    return 1;
}

/* Serve a connection that another process has made: a Unix socket begins with a greeting. */
static int descriptor_serve(int fd)
{
    struct cb_connecting guest = {.fd = fd, .passed = -1};
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
        return stream.kind ? stream_serve(stream, -1) : 1;
    }
    cb_tcp_prepare(fd);
    return stream_serve(cb_stream_plain(fd), -1);
}

static bool number_parse(const char *text, long most, long *out)
{
    char *end = NULL;
    *out = strtol(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && *out <= most;
}

/* A burst of connections needs as many descriptors as permitted. */
static void descriptor_limit_raise(void)
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
        good = c == 'l'   ? number_parse(optarg, 1 << 20, &listener)
               : c == 'o' ? number_parse(optarg, 1 << 20, &owner)
               : c == 's' ? number_parse(optarg, CB_SESSIONS_MAX, &sessions) && sessions > 0
               : c == 'b' ? number_parse(optarg, UINT32_MAX - 1, &broker)
                          : false;
    }
    if (!cb_sandbox_close_memory()) return 1;
    if (good && listener >= 0 && optind == argc) {
        struct cb_host_options options = {(int)listener, (int)owner, (unsigned)sessions, broker};
        descriptor_limit_raise();
        return cb_host_run(&options, worker_run);
    }
    if (good && listener < 0 && argc == 2 && number_parse(argv[1], 1 << 20, &fd))
        return descriptor_serve((int)fd);
    fputs(usage, stderr);
    return 2;
}
