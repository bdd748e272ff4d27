#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "remote/client/connection/lease.h"

#include "remote/client/connection/dial.h"
#include "remote/wire/resume.h"
#include "remote/wire/tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define FILE_BYTES   4096
#define LEASE_DIGITS 64
#define GRACE_S      60
#define HANDSHAKE_MS 5000

static struct lease { /* the lease of this process, also used to reconnect */
    char server[256], identity[CB_IDENTITY_MAX];
    uint8_t key[CB_KEY_BYTES];
    int grace_ms;
} lease;

static bool hex_decode(const char *text, uint8_t *out, size_t bytes)
{
    if (strlen(text) != 2 * bytes || strspn(text, "0123456789abcdefABCDEF") != 2 * bytes) return false;
    for (size_t i = 0; i < bytes; i++) {
        unsigned int value = 0;
        sscanf(text + 2 * i, "%2x", &value);
        out[i] = (uint8_t)value;
    }
    return true;
}

static bool lease_line_parse(struct lease *l, char *name, char *id)
{
    char *value = strchr(name, '=');
    if (!value) return false;
    *value++ = 0;
    if (strcmp(name, "server") == 0) {
        if (!*value || strlen(value) >= sizeof l->server) return false;
        strcpy(l->server, value);
        return true;
    }
    if (strcmp(name, "lease") == 0) {
        size_t digits = strspn(value, "0123456789abcdef");
        if (!digits || digits > LEASE_DIGITS || value[digits]) return false;
        strcpy(id, value);
        return true;
    }
    if (strcmp(name, "key") == 0) return hex_decode(value, l->key, sizeof l->key);
    if (strcmp(name, "grace_s") == 0) {
        char *end;
        long grace_s = strtol(value, &end, 10);
        l->grace_ms = (int)(grace_s * 1000);
        return *value >= '0' && *value <= '9' && !*end && grace_s <= (long)(CB_GRACE_MAX_MS / 1000);
    }
    return true; /* written by a later version */
}

/* Number of the first invalid line; 0: all are valid, -1: a line is missing. */
static int lease_lines_parse(struct lease *l, char *text, char *id)
{
    static const uint8_t none[CB_KEY_BYTES];
    int number = 0;
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) {
        number++;
        if (*line && *line != '#' && !lease_line_parse(l, line, id)) return number;
    }
    return !*l->server || !*id || memcmp(l->key, none, sizeof none) == 0 ? -1 : 0;
}

static bool lease_read(struct lease *l, const char *path, char *why, size_t capacity)
{
    char text[FILE_BYTES + 1] = "", id[LEASE_DIGITS + 1] = "";
    uint8_t session[CB_SESSION_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd < 0 ? -1 : read(fd, text, sizeof text);
    int failed = errno;
    if (fd >= 0) close(fd);
    if (bytes < 0) {
        snprintf(why, capacity, "cannot read the lease in %s: %s", path, strerror(failed));
        return false;
    }
    if (bytes > FILE_BYTES) {
        snprintf(why, capacity, "%s is not a lease file: it is longer than %d bytes", path, FILE_BYTES);
        return false;
    }
    l->grace_ms = GRACE_S * 1000;
    int wrong = lease_lines_parse(l, text, id);
    explicit_bzero(text, sizeof text);
    if (wrong > 0)
        snprintf(why, capacity, "%s is not a lease file: line %d is invalid", path, wrong);
    else if (wrong < 0)
        snprintf(why, capacity, "%s is not a lease file: server, lease or key is missing", path);
    else if (getrandom(session, sizeof session, 0) != sizeof session)
        snprintf(why, capacity, "cannot read random numbers: %s", strerror(errno));
    else
        return cb_tls_identity(l->identity, sizeof l->identity, id, session);
    return false;
}

static struct cb_tls *lease_dial(const struct lease *l, int timeout_ms, char *why, size_t capacity)
{
    int fd = cb_dial(l->server, timeout_ms, why, capacity);
    if (fd < 0) return NULL;
    cb_tcp_be_patient(fd);
    return cb_tls_client(fd, l->identity, l->key, timeout_ms, why, capacity);
}

static struct cb_tls *lease_redial(void *own, int timeout_ms)
{
    char why[CB_TLS_WHY];
    return lease_dial(own, timeout_ms, why, sizeof why);
}

struct cb_stream cb_lease_open(const char *path, char *why, size_t capacity)
{
    struct cb_stream s = {NULL, -1, NULL};
    if (!lease_read(&lease, path, why, capacity)) return s;
    struct cb_tls *t = lease_dial(&lease, HANDSHAKE_MS, why, capacity);
    if (!t) return s;
    s = cb_resume_client(t, lease.grace_ms, lease_redial, &lease);
    if (!s.kind) snprintf(why, capacity, "the server %s has closed the connection", lease.server);
    return s;
}
