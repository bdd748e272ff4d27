/*
 * Functions of the C library that NVIDIA's driver calls and that the sandbox would refuse.
 *
 * cuInit of the driver (seen with version 580) fails if one of these does:
 *
 * - It writes the names of its threads with fopen("/proc/self/task/TID/comm", "w"). The sandbox refuses to open
 *   files in a way that could create or truncate them, and these files belong to root because the worker cannot
 *   be dumped. Here, fopen opens /dev/null for them.
 * - It listens on a socket by which other processes could ask for its descriptor of nvidia-uvm. The sandbox
 *   permits no sockets, and no other process is to have this descriptor. Here, such a socket is an event
 *   descriptor, on which nothing ever arrives; setsockopt, bind and listen succeed on it.
 *   Before it binds, it unlinks the socket's path, which is empty, and expects that there is none.
 *
 * The executable's functions take precedence over those of the C library, to which all other calls go.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
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

static bool is_event(int fd)
{
    char link[32], target[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, target, sizeof target - 1);
    if (length < 0) return false;
    target[length] = 0;
    return strcmp(target, "anon_inode:[eventfd]") == 0;
}

EXPORTED int socket(int domain, int type, int protocol)
{
    if (domain == AF_UNIX && (type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK)) == SOCK_SEQPACKET)
        return eventfd(0, EFD_CLOEXEC | (type & SOCK_NONBLOCK ? EFD_NONBLOCK : 0));
    return (int)syscall(SYS_socket, domain, type, protocol);
}

EXPORTED int bind(int fd, const struct sockaddr *address, socklen_t length)
{
    if (is_event(fd)) return 0;
    return (int)syscall(SYS_bind, fd, address, length);
}

EXPORTED int listen(int fd, int backlog)
{
    if (is_event(fd)) return 0;
    return (int)syscall(SYS_listen, fd, backlog);
}

EXPORTED int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
    if (is_event(fd)) return 0;
    return (int)syscall(SYS_setsockopt, fd, level, name, value, length);
}

EXPORTED int unlink(const char *path)
{
    if (path[0]) return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    errno = ENOENT;
    return -1;
}
