/*
 * The interface of libcalabash-tls.so, through the functions of remote/wire/tls.c; the library is loaded from the
 * directory of this program.
 *
 * load: print "loaded", or why there is no TLS. Every other command makes connections over 127.0.0.1:
 * copies: send data in both directions at once. refused: the client has another key, then another session.
 * ended: one side ends while the other waits. forked: print the client's random bytes in a child and in its parent.
 */
#define _GNU_SOURCE
#include "remote/wire/tls.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES        (24u << 20)
#define HANDSHAKE_MS 20000
#define RANDOM_AT    11 /* in the client's first record */
#define RANDOM_BYTES 32

static const uint8_t session[CB_SESSION_BYTES] = {7, 1, 2}, other_session[CB_SESSION_BYTES] = {8};
static const uint8_t key[CB_KEY_BYTES] = {1, 2, 3}, other_key[CB_KEY_BYTES] = {3};

static void require(bool good, const char *what)
{
    if (good) return;
    fprintf(stderr, "not so: %s\n", what);
    exit(1);
}

struct ends {
    int listener;
    struct cb_tls *client, *server;
    char client_why[CB_TLS_WHY], server_why[CB_TLS_WHY];
    uint8_t random[RANDOM_BYTES]; /* of the client */
};

static void *server_accept(void *with)
{
    struct ends *e = with;
    uint8_t hello[RANDOM_AT + RANDOM_BYTES];
    int fd = accept(e->listener, NULL, NULL);
    require(recv(fd, hello, sizeof hello, MSG_PEEK | MSG_WAITALL) == sizeof hello, "a hello arrives");
    memcpy(e->random, hello + RANDOM_AT, RANDOM_BYTES);
    e->server = cb_tls_server(fd, session, key, HANDSHAKE_MS, e->server_why, sizeof e->server_why);
    return NULL;
}

static void connect_ends(struct ends *e, const uint8_t *client_key, const uint8_t *client_session)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    char identity[CB_IDENTITY_MAX];
    pthread_t thread;
    e->listener = socket(AF_INET, SOCK_STREAM, 0);
    require(bind(e->listener, (struct sockaddr *)&address, sizeof address) == 0, "an address");
    require(listen(e->listener, 1) == 0, "a listener");
    require(getsockname(e->listener, (struct sockaddr *)&address, &size) == 0, "a port");
    require(pthread_create(&thread, NULL, server_accept, e) == 0, "a thread");
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    require(connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "a connection");
    require(cb_tls_identity(identity, sizeof identity, "0123", client_session), "an identity");
    e->client = cb_tls_client(fd, identity, client_key, HANDSHAKE_MS, e->client_why, sizeof e->client_why);
    pthread_join(thread, NULL);
    close(e->listener);
}

static void connected(struct ends *e)
{
    memset(e, 0, sizeof *e);
    connect_ends(e, key, session);
    require(e->client, e->client_why);
    require(e->server, e->server_why);
}

static void closed(struct ends *e)
{
    cb_tls_close(e->client);
    cb_tls_close(e->server);
}

/* ---- copies ---- */

static uint8_t byte_at(size_t i)
{
    return (uint8_t)(i * 2654435761u >> 13);
}

static void *send_all(void *to)
{
    uint8_t *data = malloc(BYTES);
    require(data, "memory");
    for (size_t i = 0; i < BYTES; i++)
        data[i] = byte_at(i);
    for (size_t done = 0; done < BYTES;) {
        ssize_t sent = cb_tls_send(to, data + done, BYTES - done);
        require(sent >= 0, "data are sent");
        done += (size_t)sent;
        if (!sent) cb_tls_wait(to, POLLOUT, 1000);
    }
    while (cb_tls_unsent(to))
        cb_tls_wait(to, POLLOUT, 1000);
    free(data);
    return NULL;
}

static void *receive_all(void *from)
{
    static const size_t sizes[] = {1, 40000, 7, 1u << 20};
    uint8_t *data = malloc(1u << 20);
    require(data, "memory");
    size_t done = 0;
    for (int i = 0; done < BYTES; i++) {
        size_t most = sizes[i % 4] < BYTES - done ? sizes[i % 4] : BYTES - done;
        ssize_t got = cb_tls_receive(from, data, most);
        require(got >= 0, "data are received");
        for (size_t at = 0; at < (size_t)got; at++)
            require(data[at] == byte_at(done + at), "the data are those that were sent");
        done += (size_t)got;
        if (!got) cb_tls_wait(from, POLLIN, 1000);
    }
    free(data);
    return NULL;
}

static void copies(void)
{
    struct ends e;
    pthread_t thread[4];
    bool more = true;
    connected(&e);
    pthread_create(&thread[0], NULL, send_all, e.client);
    pthread_create(&thread[1], NULL, receive_all, e.client);
    pthread_create(&thread[2], NULL, send_all, e.server);
    pthread_create(&thread[3], NULL, receive_all, e.server);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < 1000 && more; i++, usleep(1000))
        require(cb_tls_arrived(e.client, &more) > BYTES - (more ? BYTES : 0), "sent bytes are counted");
    require(!more, "all has arrived");
    require(cb_tls_receive(e.client, &(char){0}, 1) == 0, "nothing else arrives");
    closed(&e);
    puts("same");
}

/* ---- ends ---- */

static void refused(void)
{
    struct ends e = {0};
    connect_ends(&e, other_key, session);
    require(!e.client && !e.server, "another key is refused");
    printf("%s\n%s\n", e.client_why, e.server_why);
    memset(&e, 0, sizeof e);
    connect_ends(&e, key, other_session);
    require(!e.client && !e.server, "another session is refused");
}

static void *receive_until_end(void *from)
{
    char byte;
    while (cb_tls_receive(from, &byte, 1) >= 0)
        cb_tls_wait(from, POLLIN, -1);
    return NULL;
}

static void ended(void)
{
    struct ends e;
    pthread_t thread;
    for (int by_peer = 0; by_peer < 2; by_peer++) {
        connected(&e);
        pthread_create(&thread, NULL, receive_until_end, e.server);
        usleep(50000);
        cb_tls_break(by_peer ? e.client : e.server);
        pthread_join(thread, NULL);
        require(cb_tls_send(e.server, "x", 1) < 0, "nothing is sent after the end");
        closed(&e);
    }
    puts("ended");
}

static void random_print(void)
{
    struct ends e;
    connected(&e);
    for (int i = 0; i < RANDOM_BYTES; i++)
        printf("%02x", e.random[i]);
    puts("");
    fflush(stdout);
    closed(&e);
}

static void forked(void)
{
    struct ends e;
    int status = 1;
    connected(&e);
    pid_t child = fork();
    if (child == 0) {
        closed(&e); /* takes no lock, and sends nothing */
        random_print();
        _exit(0);
    }
    waitpid(child, &status, 0);
    require(status == 0, "the child has a connection of its own");
    require(cb_tls_send(e.client, "x", 1) == 1, "the parent's connection continues");
    while (cb_tls_receive(e.server, &(char){0}, 1) == 0)
        cb_tls_wait(e.server, POLLIN, 1000);
    random_print();
    closed(&e);
}

int main(int argc, char **argv)
{
    const char *command = argc > 1 ? argv[1] : "";
    char why[CB_TLS_WHY];
    bool loaded = cb_tls_load(why, sizeof why);
    if (strcmp(command, "load") == 0 || !loaded)
        puts(loaded ? "loaded" : why);
    else if (strcmp(command, "copies") == 0)
        copies();
    else if (strcmp(command, "refused") == 0)
        refused();
    else if (strcmp(command, "ended") == 0)
        ended();
    else if (strcmp(command, "forked") == 0)
        forked();
    else
        return 2;
    return 0;
}
