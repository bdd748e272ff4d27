/* Interface between a span and each of its sessions, which is a copy of this library with its own state. */
#ifndef CALABASH_REMOTE_CLIENT_CONNECTION_SPAN_MEMBER_H
#define CALABASH_REMOTE_CLIENT_CONNECTION_SPAN_MEMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cb_session_port {
    size_t bytes; /* of the table */
    /*
     * Called before the session is opened, with its number and the place of its worker. The text must remain
     * valid.
     */
    void (*join)(unsigned int member, const char *where);
    /* Called before the session is opened, with the directory of libcalabash-tls.so; it must remain valid. */
    void (*tls_in)(const char *directory);
    /* Return true if this session allocated the memory at the address. */
    bool (*owns)(uint64_t address);
    void *const *address; /* of functions, by enum cb_cuda_function */
};

#endif
