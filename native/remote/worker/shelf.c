#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "remote/worker/shelf.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BYTES_MAX (2ull << 30)
#define FILES_MAX 4096u
#define NAME_MAX_ (2 * CB_HASH_BYTES + 1)

static int directory = -1;

bool cb_shelf_open(void)
{
    static bool tried;
    const char *path = getenv("CALABASH_IMAGES");
    if (!tried && path && *path) directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    tried = true;
    return directory >= 0;
}

static void name_of(const uint8_t hash[CB_HASH_BYTES], char name[NAME_MAX_])
{
    for (size_t i = 0; i < CB_HASH_BYTES; i++)
        snprintf(name + 2 * i, 3, "%02x", hash[i]);
}

static bool read_all(int fd, uint8_t *into, size_t bytes)
{
    while (bytes) {
        ssize_t got = read(fd, into, bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        into += got;
        bytes -= (size_t)got;
    }
    return true;
}

static bool write_all(int fd, const uint8_t *from, size_t bytes)
{
    while (bytes) {
        ssize_t put = write(fd, from, bytes);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        from += put;
        bytes -= (size_t)put;
    }
    return true;
}

void *cb_shelf_read(const uint8_t hash[CB_HASH_BYTES], size_t bytes)
{
    char name[NAME_MAX_];
    uint8_t found[CB_HASH_BYTES];
    struct stat s;
    if (!cb_shelf_open()) return NULL;
    name_of(hash, name);
    int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return NULL;
    bool ok = fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && (uint64_t)s.st_size == bytes;
    uint8_t *data = ok ? malloc(bytes + 8) : NULL;
    ok = data && read_all(fd, data, bytes);
    if (ok) {
        cb_hash(data, bytes, found);
        ok = memcmp(found, hash, sizeof found) == 0;
        memset(data + bytes, 0, 8);
        if (ok) futimens(fd, NULL); /* it was used now */
    }
    close(fd);
    if (ok) return data;
    free(data);
    unlinkat(directory, name, 0);
    return NULL;
}

/* ---- room ---- */

struct file {
    char name[NAME_MAX_];
    uint64_t bytes;
    struct timespec used;
};

static int by_age(const void *a, const void *b)
{
    const struct timespec *x = &((const struct file *)a)->used, *y = &((const struct file *)b)->used;
    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

/* What is there; too many to be looked at are more than there may be, and leave at once. */
static size_t list(struct file *files, uint64_t *bytes)
{
    size_t count = 0;
    struct stat s;
    int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (fd >= 0) close(fd);
        return 0;
    }
    for (const struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.' || strlen(e->d_name) != NAME_MAX_ - 1) continue;
        if (fstatat(directory, e->d_name, &s, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (count == FILES_MAX) {
            unlinkat(directory, e->d_name, 0);
            continue;
        }
        memcpy(files[count].name, e->d_name, NAME_MAX_);
        files[count].bytes = (uint64_t)s.st_size;
        files[count].used = s.st_mtim;
        *bytes += files[count++].bytes;
    }
    closedir(d);
    return count;
}

static uint64_t most(void)
{
    const char *text = getenv("CALABASH_IMAGES_MAX");
    char *end = NULL;
    unsigned long long bytes = text ? strtoull(text, &end, 10) : 0;
    return text && *text && !*end ? bytes : BYTES_MAX;
}

static bool make_room(uint64_t bytes)
{
    uint64_t all = bytes, limit = most();
    if (bytes > limit) return false;
    struct file *files = calloc(FILES_MAX, sizeof *files);
    if (!files) return false;
    size_t count = list(files, &all);
    qsort(files, count, sizeof *files, by_age);
    for (size_t i = 0; i < count && (all > limit || count - i >= FILES_MAX); i++) {
        if (unlinkat(directory, files[i].name, 0) == 0) all -= files[i].bytes;
    }
    free(files);
    return all <= limit;
}

/* Under another name until it is whole: whoever finds it finds all of it. */
void cb_shelf_write(const uint8_t hash[CB_HASH_BYTES], const void *data, size_t bytes)
{
    char name[NAME_MAX_], own[32];
    if (!cb_shelf_open() || !make_room(bytes)) return;
    name_of(hash, name);
    snprintf(own, sizeof own, ".%ld", (long)getpid());
    unlinkat(directory, own, 0); /* of a dead process of the same number */
    int fd = openat(directory, own, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return;
    bool ok = write_all(fd, data, bytes);
    ok = close(fd) == 0 && ok;
    if (!ok || renameat(directory, own, directory, name) != 0) unlinkat(directory, own, 0);
}
