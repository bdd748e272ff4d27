/*
 * TLS 1.3 over a connected socket, with a pre-shared key: the lease's key, and a fresh key exchange, so that a
 * lease's key that leaks later does not disclose earlier traffic. AES-128-GCM only, no certificates. The
 * identity, LEASE.SESSION, is the first thing on the wire, and not secret.
 *
 * The implementation is libcalabash-tls.so (remote/tls, tls_library.h), which is loaded when the first connection is
 * made. OpenSSL runs there with a library context of its own; it reads no configuration of the machine and
 * registers no exit handler.
 */
#ifndef CALABASH_REMOTE_TLS_H
#define CALABASH_REMOTE_TLS_H

#include "remote/wire/greeting.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define CB_IDENTITY_MAX 128
#define CB_TLS_WHY      640 /* bytes for an explanation */

/*
 * Load the library now, before a sandbox or a fork. Return false with an explanation in `why` if this build has no
 * TLS. The result of the first call stands for the life of the process.
 */
bool cb_tls_load(char *why, size_t capacity);
/* Say where the library is, before it is loaded, to code that has no path. The text must remain valid. */
void cb_tls_look_in(const char *directory);

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
