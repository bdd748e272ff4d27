/*
 * Names that the driver gives to its threads.
 *
 * NVIDIA's driver (seen with version 580) writes them with fopen("/proc/self/task/TID/comm", "w"), and cuInit
 * fails if that does. The sandbox refuses to open files in a way that could create or truncate them, and these
 * files belong to root because the worker cannot be dumped. So the executable provides fopen: it opens /dev/null
 * for these names, which nobody needs, and passes all other calls on.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

typedef FILE *(*fopen_t)(const char *, const char *);

static bool is_thread_name(const char *path, const char *mode)
{
    static const char tasks[] = "/proc/self/task/", name[] = "/comm";
    size_t length = path ? strlen(path) : 0;
    return mode && mode[0] == 'w' && length > sizeof tasks + sizeof name &&
           strncmp(path, tasks, sizeof tasks - 1) == 0 &&
           strcmp(path + length - (sizeof name - 1), name) == 0;
}

static FILE *open_null(void)
{
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    FILE *file = fdopen(fd, "w");
    if (!file) close(fd);
    return file;
}

static FILE *open_by(const char *symbol, const char *path, const char *mode)
{
    if (is_thread_name(path, mode)) return open_null();
    fopen_t next = (fopen_t)dlsym(RTLD_NEXT, symbol);
    if (next) return next(path, mode);
    errno = ENOSYS;
    return NULL;
}

EXPORTED FILE *fopen(const char *path, const char *mode)
{
    return open_by("fopen", path, mode);
}

EXPORTED FILE *fopen64(const char *path, const char *mode)
{
    return open_by("fopen64", path, mode);
}
