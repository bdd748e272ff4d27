/*
 * Interface of libcalabash-tls.so, the only file with OpenSSL: one exported table of functions. The worker and the
 * libraries of programs load it when TLS is requested (remote/wire/tls.c), from the directory of their own file.
 *
 * The functions are those of remote/wire/tls.h, which describes them.
 */
#ifndef CALABASH_REMOTE_WIRE_TLS_LIBRARY_H
#define CALABASH_REMOTE_WIRE_TLS_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define CB_TLS_FILE    "libcalabash-tls.so"
#define CB_TLS_SYMBOL  "calabash_tls"
#define CB_TLS_VERSION 1u /* of the table and of the functions' meaning */

struct cb_tls; /* a connection; its content is private to the library */

struct cb_tls_table {
    uint32_t version, bytes; /* these two come first in every version */
    struct cb_tls *(*client)(int fd, const char *identity, const uint8_t *key, int timeout_ms, char *why,
                             size_t capacity);
    /* `ending`: what the identity of a client must end in */
    struct cb_tls *(*server)(int fd, const char *ending, const uint8_t *key, int timeout_ms, char *why,
                             size_t capacity);
    ssize_t (*send)(struct cb_tls *t, const void *data, size_t bytes);
    ssize_t (*receive)(struct cb_tls *t, void *into, size_t capacity);
    size_t (*unsent)(struct cb_tls *t);
    uint64_t (*arrived)(struct cb_tls *t, bool *more);
    int (*wait)(struct cb_tls *t, int events, int timeout_ms);
    void (*shut)(struct cb_tls *t);
    void (*close)(struct cb_tls *t);
};

extern const struct cb_tls_table calabash_tls;

#endif
