/*
 * libcalabash-tls.so: TLS 1.3 by OpenSSL, which is linked statically and of which no symbol is exported. The
 * library is loaded by remote/wire/tls.c.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "remote/wire/tls.h"
#include "remote/wire/tls_library.h"

#include <errno.h>
#include <linux/sockios.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define OUT_BYTES     (256u << 10)
#define RECORD_BYTES  SSL3_RT_MAX_PLAIN_LENGTH
#define RECORD_ROOM   (RECORD_BYTES + 1024)
#define READ_BYTES    (128u << 10)
#define REKEY_RECORDS (1u << 22) /* AES-GCM allows somewhat more with one key */

struct cb_tls {
    int fd;
    pthread_mutex_t lock;
    SSL *ssl;
    SSL_SESSION *secret;
    char identity[CB_IDENTITY_MAX]; /* of a server: required ending of the identity */
    uint32_t records;
    bool broken;
    uint64_t passed; /* bytes passed to the socket */
    size_t from, to; /* bytes not yet passed to the socket */
    uint8_t out[OUT_BYTES];
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static OSSL_LIB_CTX *library;
static BIO_METHOD *socket_bio;
static int ssl_data_index; /* index of our struct in an SSL */

/* ---- the socket as a BIO ---- */

static bool socket_flush(struct cb_tls *t)
{
    while (t->from < t->to) {
        ssize_t sent = send(t->fd, t->out + t->from, t->to - t->from, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
        if (sent < 0) t->broken = true;
        if (sent < 0) return false;
        t->from += (size_t)sent;
        t->passed += (uint64_t)sent;
    }
    t->from = t->to = 0;
    return true;
}

static int bio_write(BIO *b, const char *data, int bytes)
{
    struct cb_tls *t = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    if (bytes <= 0) return 0;
    if (OUT_BYTES - t->to < (size_t)bytes) {
        memmove(t->out, t->out + t->from, t->to - t->from);
        t->to -= t->from;
        t->from = 0;
    }
    if (OUT_BYTES - t->to < (size_t)bytes) {
        BIO_set_retry_write(b);
        return -1;
    }
    memcpy(t->out + t->to, data, (size_t)bytes);
    t->to += (size_t)bytes;
    return bytes;
}

static int bio_read(BIO *b, char *into, int capacity)
{
    struct cb_tls *t = BIO_get_data(b);
    ssize_t got;
    BIO_clear_retry_flags(b);
    do
        got = recv(t->fd, into, (size_t)capacity, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got > 0) return (int)got;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        BIO_set_retry_read(b);
    else
        t->broken = true;
    return -1;
}

static long bio_ctrl(BIO *b, int command, long number, void *with)
{
    (void)b, (void)number, (void)with;
    return command == BIO_CTRL_FLUSH;
}

static void prepare(void)
{
    OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, NULL);
    library = OSSL_LIB_CTX_new();
    socket_bio = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "calabash");
    ssl_data_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, NULL);
    if (!socket_bio) return;
    BIO_meth_set_write(socket_bio, bio_write);
    BIO_meth_set_read(socket_bio, bio_read);
    BIO_meth_set_ctrl(socket_bio, bio_ctrl);
}

/* ---- the key ---- */

static int psk_client_use(SSL *ssl, const EVP_MD *md, const unsigned char **identity, size_t *bytes,
                          SSL_SESSION **session)
{
    (void)md;
    struct cb_tls *t = SSL_get_ex_data(ssl, ssl_data_index);
    *identity = (const unsigned char *)t->identity;
    *bytes = strlen(t->identity);
    *session = t->secret;
    return SSL_SESSION_up_ref(t->secret);
}

static int psk_server_find(SSL *ssl, const unsigned char *identity, size_t bytes, SSL_SESSION **session)
{
    struct cb_tls *t = SSL_get_ex_data(ssl, ssl_data_index);
    size_t ending = strlen(t->identity);
    *session = NULL;
    if (bytes <= ending || memcmp(identity + bytes - ending, t->identity, ending) != 0)
        return 1; /* identity of another session */
    *session = t->secret;
    return SSL_SESSION_up_ref(t->secret);
}

static bool psk_store(struct cb_tls *t, const uint8_t *key)
{
    static const unsigned char aes_128_gcm[] = {0x13, 0x01};
    const SSL_CIPHER *cipher = SSL_CIPHER_find(t->ssl, aes_128_gcm);
    t->secret = SSL_SESSION_new();
    return t->secret && cipher && SSL_SESSION_set1_master_key(t->secret, key, CB_KEY_BYTES) &&
           SSL_SESSION_set_cipher(t->secret, cipher) &&
           SSL_SESSION_set_protocol_version(t->secret, TLS1_3_VERSION);
}

/* ---- creation ---- */

static SSL_CTX *ssl_context_make(bool server)
{
    SSL_CTX *c = SSL_CTX_new_ex(library, NULL, server ? TLS_server_method() : TLS_client_method());
    if (!c) return NULL;
    SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set1_groups_list(c, "X25519:P-256");
    SSL_CTX_clear_options(c, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
    SSL_CTX_set_options(c, SSL_OP_NO_TICKET);
    SSL_CTX_set_num_tickets(c, 0);
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(c, 1);
    SSL_CTX_set_default_read_buffer_len(c, READ_BYTES);
    if (!server) SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL); /* a certificate is not accepted */
    if (server)
        SSL_CTX_set_psk_find_session_callback(c, psk_server_find);
    else
        SSL_CTX_set_psk_use_session_callback(c, psk_client_use);
    return c;
}

static void tls_close(struct cb_tls *t)
{
    SSL_free(t->ssl);
    SSL_SESSION_free(t->secret);
    close(t->fd);
    free(t);
}

static struct cb_tls *tls_make(int fd, bool server, const uint8_t *key)
{
    pthread_once(&once, prepare);
    struct cb_tls *t = calloc(1, sizeof *t);
    if (!t) {
        close(fd);
        return NULL;
    }
    t->fd = fd;
    pthread_mutex_init(&t->lock, NULL);
    SSL_CTX *context = library && socket_bio ? ssl_context_make(server) : NULL;
    BIO *bio = context ? BIO_new_ex(library, socket_bio) : NULL;
    t->ssl = bio ? SSL_new(context) : NULL;
    SSL_CTX_free(context);
    if (t->ssl && psk_store(t, key) && SSL_set_ex_data(t->ssl, ssl_data_index, t)) {
        BIO_set_data(bio, t);
        BIO_set_init(bio, 1);
        SSL_set_bio(t->ssl, bio, bio);
        return t;
    }
    BIO_free(bio);
    tls_close(t);
    return NULL;
}

static int64_t monotonic_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool tls_handshake(struct cb_tls *t, bool server, int timeout_ms)
{
    for (int64_t until = monotonic_ms() + timeout_ms; monotonic_ms() < until;) {
        ERR_clear_error();
        int said = server ? SSL_accept(t->ssl) : SSL_connect(t->ssl);
        int why = SSL_get_error(t->ssl, said);
        bool sent = socket_flush(t);
        if (said == 1) return sent && SSL_session_reused(t->ssl);
        if (!sent || t->broken || (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE)) return false;
        struct pollfd p = {t->fd, (short)(POLLIN | (t->to ? POLLOUT : 0)), 0};
        poll(&p, 1, (int)(until - monotonic_ms()) + 1);
    }
    errno = ETIMEDOUT;
    return false;
}

static struct cb_tls *tls_client(int fd, const char *identity, const uint8_t *key, int timeout_ms, char *why,
                                 size_t capacity)
{
    struct cb_tls *t = tls_make(fd, false, key);
    if (t && strlen(identity) < sizeof t->identity) {
        strcpy(t->identity, identity);
        if (tls_handshake(t, false, timeout_ms)) return t;
        snprintf(why, capacity, "the server refused the key of lease %.*s\nhint: the lease may have ended",
                 (int)strcspn(identity, "."), identity);
    } else {
        snprintf(why, capacity, "no memory for TLS");
    }
    if (t) tls_close(t);
    return NULL;
}

static struct cb_tls *tls_server(int fd, const char *ending, const uint8_t *key, int timeout_ms, char *why,
                                 size_t capacity)
{
    struct cb_tls *t = tls_make(fd, true, key);
    if (t && *ending && strlen(ending) < sizeof t->identity) {
        strcpy(t->identity, ending);
        if (tls_handshake(t, true, timeout_ms)) return t;
    }
    snprintf(why, capacity, "the program does not have the lease's key");
    if (t) tls_close(t);
    return NULL;
}

/* ---- bytes ---- */

static bool tls_has_failed(struct cb_tls *t, int said)
{
    int why = SSL_get_error(t->ssl, said);
    return t->broken || (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE);
}

static ssize_t tls_send(struct cb_tls *t, const void *data, size_t bytes)
{
    size_t done = 0;
    bool good;
    pthread_mutex_lock(&t->lock);
    good = !t->broken && socket_flush(t);
    while (good && done < bytes) {
        if (OUT_BYTES - (t->to - t->from) < RECORD_ROOM) {
            good = socket_flush(t);
            if (t->to - t->from > OUT_BYTES / 2) break; /* the socket is full */
        }
        if (++t->records % REKEY_RECORDS == 0) SSL_key_update(t->ssl, SSL_KEY_UPDATE_NOT_REQUESTED);
        size_t part = bytes - done < RECORD_BYTES ? bytes - done : RECORD_BYTES, sent = 0;
        ERR_clear_error();
        int said = SSL_write_ex(t->ssl, (const char *)data + done, part, &sent);
        if (said == 1)
            done += sent;
        else if (tls_has_failed(t, said))
            good = false;
        else
            break;
    }
    good = good && socket_flush(t);
    pthread_mutex_unlock(&t->lock);
    return good ? (ssize_t)done : -1;
}

static ssize_t tls_receive(struct cb_tls *t, void *into, size_t capacity)
{
    size_t done = 0;
    bool good = true;
    pthread_mutex_lock(&t->lock);
    while (good && done < capacity) {
        size_t got = 0;
        ERR_clear_error();
        int said = SSL_read_ex(t->ssl, (char *)into + done, capacity - done, &got);
        if (said != 1) {
            good = !tls_has_failed(t, said);
            break;
        }
        done += got;
    }
    pthread_mutex_unlock(&t->lock);
    return done || good ? (ssize_t)done : -1;
}

static size_t tls_unsent(struct cb_tls *t)
{
    pthread_mutex_lock(&t->lock);
    socket_flush(t);
    size_t left = t->to - t->from;
    pthread_mutex_unlock(&t->lock);
    return left;
}

static uint64_t tls_arrived(struct cb_tls *t, bool *more)
{
    int queued = 0;
    pthread_mutex_lock(&t->lock);
    if (ioctl(t->fd, SIOCOUTQ, &queued) < 0) queued = 0;
    uint64_t arrived = t->passed - (uint64_t)queued;
    pthread_mutex_unlock(&t->lock);
    *more = queued > 0;
    return arrived;
}

static int tls_wait(struct cb_tls *t, int events, int timeout_ms)
{
    struct pollfd p = {t->fd, (short)events, 0};
    int said = poll(&p, 1, timeout_ms);
    return said > 0 ? p.revents : said < 0 && errno == EINTR ? events : 0;
}

static void tls_shut(struct cb_tls *t)
{
    shutdown(t->fd, SHUT_RDWR);
}

__attribute__((visibility("default"))) const struct cb_tls_table calabash_tls = {
    .version = CB_TLS_VERSION,
    .bytes = sizeof calabash_tls,
    .client = tls_client,
    .server = tls_server,
    .send = tls_send,
    .receive = tls_receive,
    .unsent = tls_unsent,
    .arrived = tls_arrived,
    .wait = tls_wait,
    .shut = tls_shut,
    .close = tls_close,
};
