/*
 * TLS 1.3 with a key that both sides have from elsewhere, over a connected socket: the lease's key, and a fresh exchange of
 * keys, so that who learns the lease's later reads nothing of what was. AES-128-GCM, nothing else, no certificates. The
 * identity, LEASE.SESSION, is the first thing on the wire, and not secret.
 *
 * OpenSSL is in here with its own state; it takes no configuration from the machine and leaves nothing at exit.
 */
#ifndef CALABASH_REMOTE_TLS_H
#define CALABASH_REMOTE_TLS_H

#include "remote/wire/greeting.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define CB_IDENTITY_MAX 128

struct cb_tls; /* one thread may receive while another sends */

/* Both take `fd` in any case. NULL with a line in `why`. */
struct cb_tls *cb_tls_client(int fd, const char *identity, const uint8_t *key, int timeout_ms, char *why,
                             size_t room);
struct cb_tls *cb_tls_server(int fd, const uint8_t *session, const uint8_t *key, int timeout_ms, char *why,
                             size_t room);
/* As much as goes now: bytes; 0: nothing does; -1: the other side is gone. */
ssize_t cb_tls_send(struct cb_tls *t, const void *data, size_t bytes);
ssize_t cb_tls_receive(struct cb_tls *t, void *into, size_t room);
size_t cb_tls_unsent(
    struct cb_tls *t); /* bytes of what was taken that the socket has not; waiting gives them to it */
/* Bytes of the socket that the other machine has; *more: others are on the way to it. */
uint64_t cb_tls_arrived(struct cb_tls *t, bool *more);
/* Sleep until there is more to receive, or room to send: `events` of poll, of which some come back; 0: not in that time. */
int cb_tls_wait(struct cb_tls *t, int events, int timeout_ms);
void cb_tls_break(struct cb_tls *t); /* whoever waits, wakes, and finds the other side gone */
void cb_tls_close(struct cb_tls *t); /* takes no lock, and says nothing to the other side */

/* "LEASE.SESSION" with the session as hex digits; false: it does not fit. */
bool cb_tls_identity(char *out, size_t room, const char *lease, const uint8_t *session);

#endif
