/*
 * Greeting that begins a connection to a host of workers, over its Unix socket: 64 bytes, and at most one
 * descriptor with them. A refusal is one byte before the connection is closed; a HANDOVER is always answered,
 * with CB_GREETED when it is done.
 *
 *   offset  bytes
 *    0      8  magic, "CALABASH"
 *    8      2  version, 1
 *   10      2  kind
 *   12      4  flags
 *   16     16  session: of a HANDOVER, the SESSION of its TLS identity LEASE.SESSION; else zeros
 *   32     32  key: of a HANDOVER, that of the lease; else zeros
 */
#ifndef CALABASH_REMOTE_GREETING_H
#define CALABASH_REMOTE_GREETING_H

#include <stdint.h>

#define CB_GREETING_MAGIC   0x48534142414c4143ull
#define CB_GREETING_VERSION 1u
#define CB_SESSION_BYTES    16
#define CB_KEY_BYTES        32

enum cb_greeting_kind {
    CB_GREETING_LOCAL = 1, /* this very connection is the program's */
    CB_GREETING_HANDOVER,  /* the descriptor is the program's TCP connection, of which nothing was read */
};

enum cb_greeting_flag {
    CB_GREETING_RING = 1, /* LOCAL: the descriptor is memory for a ring, see ring.h */
};

enum cb_greeting_status {
    CB_GREETED,
    CB_GREETING_MALFORMED,
    CB_GREETING_OTHER_VERSION,
    CB_GREETING_FORBIDDEN, /* a HANDOVER by a process without permission */
    CB_GREETING_FULL,      /* the lease has as many sessions as it may have */
    CB_GREETING_FAILED,    /* the worker could not be started, or takes no further connection */
};

struct cb_greeting {
    uint64_t magic;
    uint16_t version, kind;
    uint32_t flags;
    uint8_t session[CB_SESSION_BYTES];
    uint8_t key[CB_KEY_BYTES];
};
_Static_assert(sizeof(struct cb_greeting) == 64, "as above");

#endif
