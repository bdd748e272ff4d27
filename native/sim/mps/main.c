/*
 * Entry of nvidia-cuda-mps-control: the daemon (-d, -f), and without either option the tool that sends it the
 * commands of stdin.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/mps/daemon.h"

#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PIPE_DIRECTORY "/tmp/nvidia-mps"

static const char usage[] =
    "usage: nvidia-cuda-mps-control [-d | -f] [-M] [-v]\n"
    "  -d  start the daemon in the background\n"
    "  -f  start the daemon in the foreground\n"
    "  -M, --multiuser-server  one server for all users\n"
    "  -v  version\n"
    "Without -d or -f: commands on the standard input, for a daemon that runs; see help.\n";

static struct daemon control;

static bool pipe_directory_find(void)
{
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    if (!directory || !*directory) directory = PIPE_DIRECTORY;
    int length = snprintf(control.directory, sizeof control.directory, "%s", directory);
    if (length < (int)sizeof control.directory) return true;
    fprintf(stderr, "The name of the pipe directory is longer than %zu bytes\n",
            sizeof control.directory - 1);
    return false;
}

/* Send one command; print its answer to stdout. */
static int command_send(const char *line)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char answer[4096];
    snprintf(a.sun_path, sizeof a.sun_path, "%s/control", control.directory);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        fprintf(stderr, "Cannot find MPS control daemon process\n");
        if (fd >= 0) close(fd);
        return 1;
    }
    if (send(fd, line, strlen(line), MSG_NOSIGNAL) > 0) {
        for (ssize_t got; (got = recv(fd, answer, sizeof answer, 0)) > 0;)
            fwrite(answer, 1, (size_t)got, stdout);
    }
    close(fd);
    return fflush(stdout) == 0 ? 0 : 1;
}

static int commands_send_all(void)
{
    char line[MESSAGE_BYTES];
    int result = 0;
    while (result == 0 && fgets(line, sizeof line, stdin)) {
        if (line[strspn(line, " \t\r\n")] == 0) continue;
        result = strncmp(line, "client ", 7) == 0 ? 1 : command_send(line);
    }
    return result;
}

static int daemon_start(bool background)
{
    int result = daemon_open(&control);
    if (result != 0) return result;
    if (background) {
        pid_t child = fork();
        if (child != 0) return child < 0;
        setsid();
        int null = open("/dev/null", O_RDWR);
        for (int i = 0; null >= 0 && i < 3; i++)
            dup2(null, i);
        if (null > 2) close(null);
    }
    return daemon_run(&control);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"multiuser-server", no_argument, NULL, 'M'}, {"help", no_argument, NULL, 'h'}, {0}};
    bool daemon = false, foreground = false;
    for (int c; (c = getopt_long_only(argc, argv, "dfMvh", options, NULL)) != -1;) {
        if (c == 'd') {
            daemon = true;
        } else if (c == 'f') {
            foreground = true;
        } else if (c == 'M') {
            control.multiuser = true;
        } else if (c == 'v') {
            printf("CUDA MPS Control binary version: 13000 (simulated)\n");
            return 0;
        } else {
            fputs(usage, c == 'h' ? stdout : stderr);
            return c == 'h' ? 0 : 1;
        }
    }
    if (optind < argc || (daemon && foreground)) {
        fputs(usage, stderr);
        return 1;
    }
    if (!pipe_directory_find()) return 1;
    return daemon || foreground ? daemon_start(daemon) : commands_send_all();
}
