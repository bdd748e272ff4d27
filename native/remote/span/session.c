/*
 * Loading of the client's library, once for each session. A library file is loaded only once per process, with
 * one state; a copy of the file is loaded separately. The copies are files in memory only.
 */
#include "remote/span/session.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX     "span:"
#define SAME_PLACE "././././././././././././././././" /* at least twice as many parts as there are sessions */

struct span_session span_sessions[CB_SPAN_MAX];
unsigned int span_count;
static char tls_directory[4096]; /* of libcalabash-tls.so, because a copy in memory has no path */

static bool report_error(const char *what, const char *detail)
{
    fprintf(stderr, "calabash: %s: %s\n", what, detail);
    return false;
}

/* Descriptor of a copy of that file; -1: failed. */
static int file_copy(const char *path)
{
    struct stat s;
    int from = open(path, O_RDONLY | O_CLOEXEC), to = memfd_create("calabash-session", MFD_CLOEXEC);
    bool ok = from >= 0 && to >= 0 && fstat(from, &s) == 0;
    for (off_t left = ok ? s.st_size : 0; left > 0;) {
        ssize_t sent = sendfile(to, from, NULL, (size_t)left);
        if (sent <= 0) ok = false;
        if (sent <= 0) break;
        left -= sent;
    }
    int failed = errno;
    if (from >= 0) close(from);
    if (ok) return to;
    if (to >= 0) close(to);
    errno = failed;
    return -1;
}

static bool session_load(struct span_session *s, const char *path, const char *place)
{
    char link[128];
    int fd = file_copy(path), same = 2 * (int)s->member;
    if (fd < 0) return report_error(path, strerror(errno));
    /* A name that was loaded once is not resolved again, so each copy gets a name of its own. */
    snprintf(link, sizeof link, "%s%.*s%d", place, same, SAME_PLACE, fd);
    s->library = dlopen(link, RTLD_NOW | RTLD_LOCAL);
    s->port = s->library ? dlsym(s->library, "cb_session_port") : NULL;
    bool ok = s->port && s->port->bytes == sizeof *s->port;
    if (!ok) report_error(path, s->library ? "it is of another version" : dlerror());
    close(fd);
    if (!ok) return false;
    s->port->tls_in(tls_directory);
    s->port->join(s->member, s->where);
    return true;
}

static bool sessions_load(const char *path, const char *place)
{
    const char *where = getenv("CALABASH_REMOTE");
    if (!where || strncmp(where, PREFIX, strlen(PREFIX)) != 0)
        return report_error("CALABASH_REMOTE names no GPU servers",
                            "hint: start the program with `calabash run --remote --span`");
    char *rest = strdup(where + strlen(PREFIX));
    for (char *one; rest && (one = strsep(&rest, "\n"));) {
        if (!*one) continue;
        if (span_count == CB_SPAN_MAX) return report_error("CALABASH_REMOTE", "too many servers");
        struct span_session *s = &span_sessions[span_count];
        *s = (struct span_session){.member = span_count + 1, .where = one};
        if (!session_load(s, path, place)) return false;
        span_count++;
    }
    return span_count != 0;
}

bool span_load(const char *name, const char *place)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static enum { NOT_YET, LOADED, FAILED } state;
    char path[4096];
    Dl_info own;
    pthread_mutex_lock(&lock);
    if (state == NOT_YET) {
        state = FAILED;
        const char *file = dladdr((void *)span_load, &own) ? own.dli_fname : NULL;
        const char *slash = file ? strrchr(file, '/') : NULL;
        if (slash) snprintf(tls_directory, sizeof tls_directory, "%.*s/..", (int)(slash - file), file);
        int length = slash ? snprintf(path, sizeof path, "%.*s/%s", (int)(slash - file), file, name) : -1;
        bool ok = length > 0 && (size_t)length < sizeof path ? sessions_load(path, place)
                                                             : report_error(name, "it is not found");
        if (ok) state = LOADED;
    }
    bool ok = state == LOADED;
    pthread_mutex_unlock(&lock);
    return ok;
}
