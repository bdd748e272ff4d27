/*
 * TLS 1.3 over a connected socket, with a pre-shared key: the lease's key, and a fresh key exchange, so that a
 * lease's key that leaks later does not disclose earlier traffic. AES-128-GCM only, no certificates. The
 * identity, LEASE.SESSION, is the first thing on the wire, and not secret.
 *
 * OpenSSL runs with a library context of its own; it reads no configuration of the machine and registers no
 * exit handler.
 */
#ifndef CALABASH_REMOTE_TLS_H
#define CALABASH_REMOTE_TLS_H

#include "remote/wire/greeting.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define CB_IDENTITY_MAX 128

struct cb_tls; /* one thread may receive while another sends */

/* Both take ownership of `fd` in any case. Return NULL with a line in `why` on failure. */
struct cb_tls *cb_tls_client(int fd, const char *identity, const uint8_t *key, int timeout_ms, char *why,
                             size_t capacity);
struct cb_tls *cb_tls_server(int fd, const uint8_t *session, const uint8_t *key, int timeout_ms, char *why,
                             size_t capacity);
/* Send as much as possible now: return the bytes taken; 0: none; -1: the other side has ended. */
ssize_t cb_tls_send(struct cb_tls *t, const void *data, size_t bytes);
ssize_t cb_tls_receive(struct cb_tls *t, void *into, size_t capacity);
/* bytes taken that the socket does not have yet; cb_tls_wait passes them to it */
size_t cb_tls_unsent(struct cb_tls *t);
/* Bytes of the socket that the other machine has received; *more: others are on the way. */
uint64_t cb_tls_arrived(struct cb_tls *t, bool *more);
/*
 * Sleep until there is more to receive, or space to send: `events` of poll, of which some are returned; 0:
 * timeout.
 */
int cb_tls_wait(struct cb_tls *t, int events, int timeout_ms);
void cb_tls_break(struct cb_tls *t); /* wake all waiting threads, which then find the connection ended */
void cb_tls_close(struct cb_tls *t); /* takes no lock, and sends nothing to the other side */

/* "LEASE.SESSION" with the session as hex digits; false if it does not fit. */
bool cb_tls_identity(char *out, size_t capacity, const char *lease, const uint8_t *session);

#endif
