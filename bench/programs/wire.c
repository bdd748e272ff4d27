/*
 * Benchmark of a plain TCP connection, as a baseline: `wire ping ROUNDS` prints the median of a question and an
 * answer of 64 bytes each in one machine, in us; `wire bulk BYTES` the rate at which so many go one way and are
 * acknowledged by a byte, in GiB/s, the best of three.
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PIECE (256u << 10)

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void must(int good, const char *what)
{
    if (good) return;
    perror(what);
    exit(1);
}

static void echo(int fd)
{
    char message[64];
    while (recv(fd, message, sizeof message, MSG_WAITALL) == sizeof message)
        must(send(fd, message, sizeof message, MSG_NOSIGNAL) == sizeof message, "send");
}

static void swallow(int fd, size_t bytes)
{
    static char into[PIECE];
    for (size_t got = 0;;) {
        ssize_t some = recv(fd, into, sizeof into, 0);
        if (some <= 0) return;
        got += (size_t)some;
        if (got >= bytes) {
            must(send(fd, into, 1, MSG_NOSIGNAL) == 1, "send");
            got = 0;
        }
    }
}

static void ping(int fd, int rounds)
{
    uint64_t *took = calloc((size_t)rounds, sizeof *took);
    char message[64] = "";
    for (int i = 0; i < rounds; i++) {
        uint64_t began = now_ns();
        must(send(fd, message, sizeof message, MSG_NOSIGNAL) == sizeof message, "send");
        must(recv(fd, message, sizeof message, MSG_WAITALL) == sizeof message, "recv");
        took[i] = now_ns() - began;
    }
    qsort(took, (size_t)rounds, sizeof *took, by_value);
    printf("{\"us\": %.2f}\n", (double)took[rounds / 2] / 1000);
}

static void bulk(int fd, size_t bytes)
{
    char *data = malloc(bytes), done;
    double best = 0;
    memset(data, 7, bytes);
    for (int i = 0; i < 4; i++) {
        uint64_t began = now_ns();
        for (size_t sent = 0; sent < bytes;) {
            ssize_t some = send(fd, data + sent, bytes - sent, MSG_NOSIGNAL);
            must(some > 0, "send");
            sent += (size_t)some;
        }
        must(recv(fd, &done, 1, 0) == 1, "recv");
        double rate = (double)bytes / (double)(now_ns() - began) * 1e9 / (1 << 30);
        if (i && rate > best) best = rate;
    }
    printf("{\"gib_s\": %.3f}\n", best);
}

int main(int argc, char **argv)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t room = sizeof here;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    must(argc == 3, "usage: wire ping ROUNDS | wire bulk BYTES");
    size_t number = strtoull(argv[2], NULL, 10);
    must(bind(listener, (struct sockaddr *)&here, sizeof here) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&here, &room) == 0, "getsockname");
    if (fork() == 0) {
        int fd = accept(listener, NULL, NULL);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (strcmp(argv[1], "ping") == 0)
            echo(fd);
        else
            swallow(fd, number);
        _exit(0);
    }
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(fd, (struct sockaddr *)&here, sizeof here) == 0, "connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (strcmp(argv[1], "ping") == 0)
        ping(fd, (int)number);
    else
        bulk(fd, number);
    close(fd);
    wait(NULL);
    return 0;
}
