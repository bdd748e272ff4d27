/*
 * Loading of libcalabash-tls.so, and calls of its functions.
 *
 * The path is that of the file which contains this code, with another name: neither LD_LIBRARY_PATH nor the working
 * directory has a part in it. A copy of the library that has no path, as the sessions of a span are, is told the
 * directory.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "remote/wire/tls.h"

#include "remote/wire/tls_library.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct cb_tls_table *table;
static const char *told_directory;
static char failure[CB_TLS_WHY];

bool cb_tls_identity(char *out, size_t capacity, const char *lease, const uint8_t *session)
{
    int length = snprintf(out, capacity, "%s.", lease);
    if (length < 2 || (size_t)length + 2 * CB_SESSION_BYTES >= capacity) return false;
    for (int i = 0; i < CB_SESSION_BYTES; i++)
        snprintf(out + length + 2 * i, 3, "%02x", session[i]);
    return true;
}

/* ---- loading ---- */

void cb_tls_look_in(const char *directory)
{
    told_directory = directory;
}

/* Write the path of the file that contains this code; the loader has no name for the main program. */
static bool own_path(char *out, size_t capacity)
{
    struct link_map *own = NULL;
    Dl_info found;
    if (!dladdr1(&once, &found, (void **)&own, RTLD_DL_LINKMAP) || !own) return false;
    if (*own->l_name) return (size_t)snprintf(out, capacity, "%s", own->l_name) < capacity;
    ssize_t length = readlink("/proc/self/exe", out, capacity);
    if (length < 0 || (size_t)length >= capacity) return false;
    out[length] = 0;
    return true;
}

static bool library_path(char *out, size_t capacity)
{
    char own[PATH_MAX];
    if (told_directory)
        return *told_directory == '/' &&
               (size_t)snprintf(out, capacity, "%s/" CB_TLS_FILE, told_directory) < capacity;
    if (!own_path(own, sizeof own) || *own != '/') return false;
    strrchr(own, '/')[1] = 0;
    return (size_t)snprintf(out, capacity, "%s" CB_TLS_FILE, own) < capacity;
}

static void library_load(void)
{
    char path[PATH_MAX + sizeof CB_TLS_FILE];
    if (!library_path(path, sizeof path)) {
        snprintf(failure, sizeof failure,
                 "TLS is not available: this library was loaded by a relative path, so that " CB_TLS_FILE
                 " cannot be found beside it\nhint: write absolute paths into LD_LIBRARY_PATH");
        return;
    }
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        snprintf(failure, sizeof failure,
                 "this build of Calabash has no TLS: %.400s does not exist\n"
                 "hint: install libssl-dev, then make native; or install a wheel that has TLS",
                 path);
        return;
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const struct cb_tls_table *found = library ? dlsym(library, CB_TLS_SYMBOL) : NULL;
    if (found && found->version == CB_TLS_VERSION && found->bytes == sizeof *found)
        table = found;
    else if (found)
        snprintf(failure, sizeof failure,
                 "TLS is not available: %.400s has interface version %u instead of %u\n"
                 "hint: Calabash was replaced while the program ran; start the program again",
                 path, found->version, CB_TLS_VERSION);
    else
        snprintf(failure, sizeof failure, "TLS is not available: %.480s\nhint: install Calabash again",
                 dlerror());
}

bool cb_tls_load(char *why, size_t capacity)
{
    pthread_once(&once, library_load);
    if (!table) snprintf(why, capacity, "%s", failure);
    return table;
}

/* ---- the functions of the library ---- */

struct cb_tls *cb_tls_client(int fd, const char *identity, const uint8_t *key, int timeout_ms, char *why,
                             size_t capacity)
{
    if (cb_tls_load(why, capacity)) return table->client(fd, identity, key, timeout_ms, why, capacity);
    close(fd);
    return NULL;
}

struct cb_tls *cb_tls_server(int fd, const uint8_t *session, const uint8_t *key, int timeout_ms, char *why,
                             size_t capacity)
{
    char identity[CB_IDENTITY_MAX];
    if (cb_tls_load(why, capacity) && cb_tls_identity(identity, sizeof identity, "lease", session))
        return table->server(fd, strchr(identity, '.'), key, timeout_ms, why, capacity);
    close(fd);
    return NULL;
}

ssize_t cb_tls_send(struct cb_tls *t, const void *data, size_t bytes)
{
    return table->send(t, data, bytes);
}

ssize_t cb_tls_receive(struct cb_tls *t, void *into, size_t capacity)
{
    return table->receive(t, into, capacity);
}

size_t cb_tls_unsent(struct cb_tls *t)
{
    return table->unsent(t);
}

uint64_t cb_tls_arrived(struct cb_tls *t, bool *more)
{
    return table->arrived(t, more);
}

int cb_tls_wait(struct cb_tls *t, int events, int timeout_ms)
{
    return table->wait(t, events, timeout_ms);
}

void cb_tls_break(struct cb_tls *t)
{
    table->shut(t);
}

void cb_tls_close(struct cb_tls *t)
{
    table->close(t);
}
