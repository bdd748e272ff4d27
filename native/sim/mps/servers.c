/*
 * Servers of the control daemon: starting one for a user, setting its defaults once it is up, and watching for
 * its end.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/mps/servers.h"

#include "sim/mps/log.h"
#include "sim/node/mps.h"
#include "sim/node/slot.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

#define SERVER_PROGRAM "nvidia-cuda-mps-server"
#define CONTROL_FD     3

struct server *server_of(struct daemon *d, pid_t pid)
{
    for (uint32_t i = 0; i < SERVERS_MAX; i++) {
        if (pid > 0 && d->server[i].pid == pid) return &d->server[i];
    }
    return NULL;
}

struct server *server_for(struct daemon *d, uint32_t uid)
{
    for (uint32_t i = 0; i < SERVERS_MAX; i++) {
        struct server *v = &d->server[i];
        if (v->pid && !v->leaving && (v->uid == uid || v->uid == EVERYBODY)) return v;
    }
    return NULL;
}

struct sim_mps *server_state(struct daemon *d, const struct server *v)
{
    return v->pid && v->slot >= 0 ? sim_mps_server(d->sim.node, (uint32_t)v->slot) : NULL;
}

/* In the child: execute the server. */
static void server_exec(uint32_t uid, int pipe_fd)
{
    char path[4096], text[16];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 64);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (length <= 0) _exit(127);
    path[length] = 0;
    char *slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, SERVER_PROGRAM);
    if (pipe_fd == CONTROL_FD)
        fcntl(pipe_fd, F_SETFD, 0);
    else if (dup2(pipe_fd, CONTROL_FD) < 0)
        _exit(127);
    if (uid != EVERYBODY && geteuid() == 0 && uid != 0 && (setgid(uid) != 0 || setuid(uid) != 0)) _exit(127);
    snprintf(text, sizeof text, "%u", uid == EVERYBODY ? (uint32_t)getuid() : uid);
    setenv(MPS_SERVER_ENVIRONMENT, "1", 1);
    unsetenv("LD_PRELOAD");
    execl(path, SERVER_PROGRAM, text, (char *)NULL);
    _exit(127);
}

struct server *server_start(struct daemon *d, uint32_t uid)
{
    struct server *v = NULL;
    int ends[2];
    if (d->multiuser) uid = EVERYBODY;
    for (uint32_t i = 0; i < SERVERS_MAX && !v; i++) {
        if (!d->server[i].pid) v = &d->server[i];
    }
    if (!v || pipe2(ends, O_CLOEXEC) != 0) return NULL;
    pid_t pid = fork();
    if (pid == 0) server_exec(uid, ends[0]);
    close(ends[0]);
    if (pid < 0) {
        close(ends[1]);
        return NULL;
    }
    *v = (struct server){.pid = pid, .uid = uid, .pipe = ends[1], .slot = -1};
    if (uid == EVERYBODY)
        log_line("Starting new server %d for all users", (int)pid);
    else
        log_line("Starting new server %d for user %u", (int)pid, uid);
    return v;
}

void server_stop(struct server *v, bool force)
{
    v->leaving = true;
    kill(v->pid, force ? SIGKILL : SIGTERM);
}

uint64_t limit_bytes(const char *text)
{
    char *end;
    if (*text < '0' || *text > '9') return 0;
    unsigned long long amount = strtoull(text, &end, 10);
    if (amount > 1u << 20 || (*end != 'G' && *end != 'M') || end[1]) return 0;
    return (uint64_t)amount << (*end == 'G' ? 30 : 20);
}

int device_named(struct daemon *d, const struct sim_mps *m, const char *word)
{
    char *end;
    unsigned long ordinal = strtoul(word, &end, 10);
    if (*word >= '0' && *word <= '9' && !*end) return ordinal < m->visible_count ? m->visible[ordinal] : -1;
    size_t length = strlen(word);
    for (uint32_t i = 0; i < m->visible_count && length > 4; i++) {
        if (strncasecmp(d->sim.node->device[m->visible[i]].profile.uuid, word, length) == 0)
            return m->visible[i];
    }
    return -1;
}

/* Find a server that has come up in the node, set its defaults, and let it serve. */
static void server_configure(struct daemon *d, struct server *v)
{
    for (uint32_t i = 0; i < sim_procs_used(d->sim.node); i++) {
        struct sim_mps *m = sim_mps_server(d->sim.node, i);
        if (!m || sim_process_pid(&d->sim, i) != v->pid) continue;
        v->slot = (int)i;
        m->permille = d->permille;
        for (uint32_t k = 0; k < d->limit_count; k++) {
            int device = device_named(d, m, d->limit[k].device);
            if (device >= 0) m->memory_bytes[device] = limit_bytes(d->limit[k].value);
        }
        __atomic_store_n(&m->status, SIM_MPS_ACTIVE, __ATOMIC_RELEASE);
        log_line("NEW SERVER %d: Ready", (int)v->pid);
        return;
    }
}

void servers_poll(struct daemon *d)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        struct server *v = server_of(d, pid);
        if (!v) continue;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            log_line("Server %d exited with status 0", (int)pid);
        else
            log_line("Server %d exited: %s %d", (int)pid, WIFSIGNALED(status) ? "signal" : "status",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        close(v->pipe);
        memset(v, 0, sizeof *v);
        sim_sweep(&d->sim, 0); /* its clients are notified at once */
    }
    for (uint32_t i = 0; i < SERVERS_MAX; i++) {
        struct server *v = &d->server[i];
        if (v->pid && v->slot < 0) server_configure(d, v);
        if (v->pid && v->leaving && v->slot >= 0 && sim_mps_clients(d->sim.node, (uint32_t)v->slot) == 0)
            kill(v->pid, SIGTERM);
    }
}
