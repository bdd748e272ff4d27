#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "remote/worker/shelf.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BYTES_MAX  (2ull << 30)
#define COUNT_MAX  65536u
#define MAGIC      0x3153454741414243ull /* "CBAAGES1" */
#define GIVEN      "fd:"
#define ALIGNED(x) (((x) + 63u) & ~(uint64_t)63u)

/* The file begins with one of these, whose `bytes` are 0; then each image has one before it. Those of another round are
 * what was there before the shelf was emptied. */
struct label {
    uint64_t magic, round, bytes, reserved;
    uint8_t hash[CB_HASH_BYTES];
};
_Static_assert(sizeof(struct label) == 64, "labels are aligned");

struct place {
    struct label label;
    uint64_t at, end; /* of the label; of what has been looked at */
};

static int file = -1;

/* A descriptor that whoever started us has left open; the file may be one that we could not open ourselves. */
static int given(const char *text)
{
    char *end = NULL;
    long fd = strtol(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && fd <= INT_MAX ? (int)fd : -1;
}

bool cb_shelf_open(void)
{
    static bool tried;
    struct stat s;
    const char *path = getenv("CALABASH_IMAGES");
    if (tried || !path || !*path) return file >= 0;
    tried = true;
    file = strncmp(path, GIVEN, sizeof GIVEN - 1) == 0
               ? given(path + sizeof GIVEN - 1)
               : open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (file >= 0 && (fstat(file, &s) != 0 || !S_ISREG(s.st_mode))) {
        close(file);
        file = -1;
    }
    return file >= 0;
}

static bool read_all(uint64_t at, void *into, size_t bytes)
{
    uint8_t *to = into;
    while (bytes) {
        ssize_t got = pread(file, to, bytes, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        to += got;
        at += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return true;
}

static bool write_all(uint64_t at, const void *from, size_t bytes)
{
    const uint8_t *data = from;
    while (bytes) {
        ssize_t put = pwrite(file, data, bytes, (off_t)at);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        data += put;
        at += (uint64_t)put;
        bytes -= (size_t)put;
    }
    return true;
}

/* Nobody is waited for: whoever holds the lock may be anybody. It is this process's, for workers of one host have the
 * descriptor in common. */
static bool set_lock(short how)
{
    struct flock whole = {.l_type = how, .l_whence = SEEK_SET};
    return fcntl(file, F_SETLK, &whole) == 0;
}

static bool lock(short how)
{
    return cb_shelf_open() && set_lock(how);
}

static void unlock(void)
{
    set_lock(F_UNLCK);
}

static uint64_t most(void)
{
    const char *text = getenv("CALABASH_IMAGES_MAX");
    char *end = NULL;
    unsigned long long bytes = text ? strtoull(text, &end, 10) : 0;
    return text && *text && !*end ? bytes : BYTES_MAX;
}

/* Where the image is, or would be put. False: not there. A file that is none of ours is an empty shelf. */
static bool find(const uint8_t hash[CB_HASH_BYTES], uint64_t bytes, struct place *p)
{
    struct label first;
    struct stat s;
    p->end = 0;
    if (fstat(file, &s) != 0 || !read_all(0, &first, sizeof first) || first.magic != MAGIC) return false;
    p->end = sizeof first;
    for (unsigned i = 0; i < COUNT_MAX; i++) {
        p->at = p->end;
        if (!read_all(p->at, &p->label, sizeof p->label)) return false;
        const struct label *l = &p->label;
        if (l->magic != MAGIC || l->round != first.round || l->bytes > (uint64_t)s.st_size) return false;
        p->end = p->at + sizeof *l + ALIGNED(l->bytes);
        if (l->bytes == bytes && memcmp(l->hash, hash, CB_HASH_BYTES) == 0) return true;
    }
    return false;
}

void *cb_shelf_read(const uint8_t hash[CB_HASH_BYTES], size_t bytes)
{
    struct place p;
    uint8_t *data = NULL, found[CB_HASH_BYTES];
    if (!lock(F_RDLCK)) return NULL;
    if (find(hash, bytes, &p) && (data = malloc(bytes + 8)) &&
        !read_all(p.at + sizeof p.label, data, bytes)) {
        free(data);
        data = NULL;
    }
    unlock();
    if (!data) return NULL;
    memset(data + bytes, 0, 8);
    cb_hash(data, bytes, found);
    if (memcmp(found, hash, sizeof found) == 0) return data;
    free(data);
    if (lock(F_WRLCK)) { /* it is not what its label says: nobody shall look at it again */
        memset(p.label.hash, 0, sizeof p.label.hash);
        write_all(p.at, &p.label, sizeof p.label);
        unlock();
    }
    return NULL;
}

static bool put(const struct label *l, const void *data, uint64_t at)
{
    struct label none = {0};
    uint64_t end = at + sizeof *l + ALIGNED(l->bytes);
    return write_all(at + sizeof *l, data, l->bytes) && write_all(end, &none, sizeof none) &&
           write_all(at, l, sizeof *l);
}

void cb_shelf_write(const uint8_t hash[CB_HASH_BYTES], const void *data, size_t bytes)
{
    struct place p;
    struct label first = {.magic = MAGIC};
    uint64_t limit = most(), need = 2 * sizeof first + ALIGNED(bytes);
    if (need + sizeof first > limit || !lock(F_WRLCK)) return;
    if (!find(hash, bytes, &p)) {
        bool empty = !p.end || p.end + need > limit;
        uint64_t at = empty ? sizeof first : p.at;
        if (!read_all(0, &first, sizeof first) || first.magic != MAGIC)
            first = (struct label){.magic = MAGIC};
        struct label l = {.magic = MAGIC, .bytes = bytes};
        memcpy(l.hash, hash, CB_HASH_BYTES);
        first.round += empty; /* what was there is of another round from here on */
        l.round = first.round;
        if (!empty || write_all(0, &first, sizeof first)) put(&l, data, at);
    }
    unlock();
}
