#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "remote/worker/image_store.h"

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

/*
 * The file begins with a label whose `bytes` are 0; then a label precedes each image. Labels of another round
 * are left from before the store was emptied.
 */
struct label {
    uint64_t magic, round, bytes, reserved;
    uint8_t hash[CB_HASH_BYTES];
};
_Static_assert(sizeof(struct label) == 64, "labels are aligned");

struct place {
    struct label label;
    uint64_t at, end; /* position of the label; end of the part that was searched */
};

static int store_file = -1;

/*
 * A descriptor that the parent process has left open; the file may be one that this process could not open
 * itself.
 */
static int descriptor_parse(const char *text)
{
    char *end = NULL;
    long fd = strtol(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && fd <= INT_MAX ? (int)fd : -1;
}

bool cb_image_store_open(void)
{
    static bool tried;
    struct stat s;
    const char *path = getenv("CALABASH_IMAGES");
    if (tried || !path || !*path) return store_file >= 0;
    tried = true;
    store_file = strncmp(path, GIVEN, sizeof GIVEN - 1) == 0
                     ? descriptor_parse(path + sizeof GIVEN - 1)
                     : open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (store_file >= 0 && (fstat(store_file, &s) != 0 || !S_ISREG(s.st_mode))) {
        close(store_file);
        store_file = -1;
    }
    return store_file >= 0;
}

static bool file_read(uint64_t at, void *into, size_t bytes)
{
    uint8_t *to = into;
    while (bytes) {
        ssize_t got = pread(store_file, to, bytes, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        to += got;
        at += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return true;
}

static bool file_write(uint64_t at, const void *from, size_t bytes)
{
    const uint8_t *data = from;
    while (bytes) {
        ssize_t written = pwrite(store_file, data, bytes, (off_t)at);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        data += written;
        at += (uint64_t)written;
        bytes -= (size_t)written;
    }
    return true;
}

/*
 * Never wait: the holder of the lock is not trusted. The lock is owned by the process, because workers of one
 * host share the descriptor.
 */
static bool lock_set(short how)
{
    struct flock whole = {.l_type = how, .l_whence = SEEK_SET};
    return fcntl(store_file, F_SETLK, &whole) == 0;
}

static bool store_lock(short how)
{
    return cb_image_store_open() && lock_set(how);
}

static void store_unlock(void)
{
    lock_set(F_UNLCK);
}

static uint64_t max_bytes(void)
{
    const char *text = getenv("CALABASH_IMAGES_MAX");
    char *end = NULL;
    unsigned long long bytes = text ? strtoull(text, &end, 10) : 0;
    return text && *text && !*end ? bytes : BYTES_MAX;
}

/*
 * Find where the image is, or would be put. Return false if it is absent. A file that is not an image store is
 * treated as empty.
 */
static bool image_find(const uint8_t hash[CB_HASH_BYTES], uint64_t bytes, struct place *p)
{
    struct label first;
    struct stat s;
    p->end = 0;
    if (fstat(store_file, &s) != 0 || !file_read(0, &first, sizeof first) || first.magic != MAGIC)
        return false;
    p->end = sizeof first;
    for (unsigned i = 0; i < COUNT_MAX; i++) {
        p->at = p->end;
        if (!file_read(p->at, &p->label, sizeof p->label)) return false;
        const struct label *l = &p->label;
        if (l->magic != MAGIC || l->round != first.round || l->bytes > (uint64_t)s.st_size) return false;
        p->end = p->at + sizeof *l + ALIGNED(l->bytes);
        if (l->bytes == bytes && memcmp(l->hash, hash, CB_HASH_BYTES) == 0) return true;
    }
    return false;
}

void *cb_image_store_read(const uint8_t hash[CB_HASH_BYTES], size_t bytes)
{
    struct place p;
    uint8_t *data = NULL, found[CB_HASH_BYTES];
    if (!store_lock(F_RDLCK)) return NULL;
    if (image_find(hash, bytes, &p) && (data = malloc(bytes + 8)) &&
        !file_read(p.at + sizeof p.label, data, bytes)) {
        free(data);
        data = NULL;
    }
    store_unlock();
    if (!data) return NULL;
    memset(data + bytes, 0, 8);
    cb_hash(data, bytes, found);
    if (memcmp(found, hash, sizeof found) == 0) return data;
    free(data);
    /* its contents do not match its label: empty the store, so that it is not read again */
    if (store_lock(F_WRLCK)) {
        memset(p.label.hash, 0, sizeof p.label.hash);
        file_write(p.at, &p.label, sizeof p.label);
        store_unlock();
    }
    return NULL;
}

static bool image_put(const struct label *l, const void *data, uint64_t at)
{
    struct label none = {0};
    uint64_t end = at + sizeof *l + ALIGNED(l->bytes);
    return file_write(at + sizeof *l, data, l->bytes) && file_write(end, &none, sizeof none) &&
           file_write(at, l, sizeof *l);
}

void cb_image_store_write(const uint8_t hash[CB_HASH_BYTES], const void *data, size_t bytes)
{
    struct place p;
    struct label first = {.magic = MAGIC};
    uint64_t limit = max_bytes(), need = 2 * sizeof first + ALIGNED(bytes);
    if (need + sizeof first > limit || !store_lock(F_WRLCK)) return;
    if (!image_find(hash, bytes, &p)) {
        bool empty = !p.end || p.end + need > limit;
        uint64_t at = empty ? sizeof first : p.at;
        if (!file_read(0, &first, sizeof first) || first.magic != MAGIC)
            first = (struct label){.magic = MAGIC};
        struct label l = {.magic = MAGIC, .bytes = bytes};
        memcpy(l.hash, hash, CB_HASH_BYTES);
        first.round += empty; /* older images belong to another round from here on */
        l.round = first.round;
        if (!empty || file_write(0, &first, sizeof first)) image_put(&l, data, at);
    }
    store_unlock();
}
