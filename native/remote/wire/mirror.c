#include "remote/wire/mirror.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define WINDOW 512u /* pages whose presence is read at once */

struct record {
    uint64_t address;
    uint32_t bytes; /* of the block; whole words */
    /* words that have changed: a bit for each word of the block, and these words; all: just the block */
    uint32_t words;
};

bool cb_mirror_make(struct cb_mirror *t, uint64_t address, uint64_t bytes, bool sparse)
{
    bytes = (bytes + 3) & ~3ull;
    void *agreed =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (agreed == MAP_FAILED) return false;
    *t = (struct cb_mirror){address, bytes, agreed, sparse};
    return true;
}

void cb_mirror_end(struct cb_mirror *t)
{
    munmap(t->agreed, t->bytes);
}

/* ---- pages that exist ---- */

struct pages {
    uint64_t entry[WINDOW];
    uint64_t first, count, size;
};

static int pagemap_open(void)
{
    static int fd = -1;
    static pid_t of;
    if (of == getpid()) return fd;
    if (fd >= 0) close(fd);
    of = getpid();
    fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    return fd;
}

static bool page_exists(struct pages *p, uint64_t address)
{
    if (!p->size) p->size = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t page = address / p->size;
    if (page - p->first >= p->count) {
        int fd = pagemap_open();
        ssize_t got = fd < 0 ? -1 : pread(fd, p->entry, sizeof p->entry, (off_t)(page * sizeof p->entry[0]));
        if (got < (ssize_t)sizeof p->entry[0]) return true;
        p->first = page;
        p->count = (uint64_t)got / sizeof p->entry[0];
    }
    return p->entry[page - p->first] >> 62 != 0; /* present, or swapped out */
}

/* ---- changes of this end ---- */

static size_t block_changes_put(struct cb_mirror *t, uint64_t at, uint32_t bytes, uint8_t *out)
{
    uint32_t now[CB_MIRROR_BLOCK / 4], before[CB_MIRROR_BLOCK / 4];
    uint64_t changed[CB_MIRROR_BLOCK / 256] = {0};
    uint32_t count = 0;
    memcpy(now, (const void *)(t->address + at), bytes); /* one read: it may be written meanwhile */
    memcpy(before, t->agreed + at, bytes);
    for (uint32_t i = 0; i < bytes / 4; i++) {
        if (now[i] == before[i]) continue;
        changed[i / 64] |= 1ull << (i % 64);
        count++;
    }
    if (!count) return 0;
    memcpy(t->agreed + at, now, bytes);
    struct record r = {t->address + at, bytes, count};
    size_t filled = sizeof r;
    memcpy(out, &r, sizeof r);
    if (count == bytes / 4) {
        memcpy(out + filled, now, bytes);
        filled += bytes;
    } else {
        size_t bits = (bytes / 4 + 63) / 64 * 8;
        memcpy(out + filled, changed, bits);
        filled += bits;
        for (uint32_t i = 0; i < bytes / 4; i++) {
            if (!(changed[i / 64] >> (i % 64) & 1)) continue;
            memcpy(out + filled, &now[i], 4);
            filled += 4;
        }
    }
    if (filled % 8) {
        memset(out + filled, 0, 4);
        filled += 4;
    }
    return filled;
}

size_t cb_mirror_changes(struct cb_mirror *t, uint64_t *at, uint8_t *out, size_t capacity)
{
    struct pages pages;
    size_t filled = 0;
    pages.count = pages.size = pages.first = 0;
    while (*at < t->bytes && capacity - filled >= CB_MIRROR_RECORD) {
        uint64_t address = t->address + *at, left = t->bytes - *at;
        uint32_t bytes = CB_MIRROR_BLOCK - (uint32_t)(address % CB_MIRROR_BLOCK);
        if (bytes > left) bytes = (uint32_t)left;
        bool written = !t->sparse || page_exists(&pages, address);
        if (written && memcmp((const void *)address, t->agreed + *at, bytes) != 0)
            filled += block_changes_put(t, *at, bytes, out + filled);
        *at += bytes;
    }
    return filled;
}

/* ---- changes of the other end ---- */

static size_t changed_word_count(const uint64_t *bits, size_t words)
{
    size_t count = 0;
    for (size_t i = 0; i < (words + 63) / 64; i++) {
        uint64_t b = bits[i];
        if (i == words / 64) b &= (1ull << (words % 64)) - 1;
        if (b != bits[i]) return SIZE_MAX;
        count += (size_t)__builtin_popcountll(b);
    }
    return count;
}

static size_t words_apply(struct cb_mirror *t, const struct record *r, const uint8_t *data, size_t bytes)
{
    uint64_t changed[CB_MIRROR_BLOCK / 256];
    uint32_t words = r->bytes / 4;
    size_t bits = (words + 63) / 64 * 8, whole = (bits + 4ull * r->words + 7) & ~7ull;
    if (whole > bytes) return 0;
    memcpy(changed, data, bits);
    if (changed_word_count(changed, words) != r->words) return 0;
    data += bits;
    for (uint32_t i = 0; i < words; i++) {
        if (!(changed[i / 64] >> (i % 64) & 1)) continue;
        memcpy((uint8_t *)r->address + 4ull * i, data, 4);
        memcpy(t->agreed + (r->address - t->address) + 4ull * i, data, 4);
        data += 4;
    }
    return whole;
}

static size_t block_apply(struct cb_mirror *t, const struct record *r, const uint8_t *data, size_t bytes)
{
    size_t whole = (r->bytes + 7ull) & ~7ull;
    if (whole > bytes) return 0;
    memcpy((void *)r->address, data, r->bytes);
    memcpy(t->agreed + (r->address - t->address), data, r->bytes);
    return whole;
}

bool cb_mirror_apply(const uint8_t *data, size_t bytes, struct cb_mirror *(*of)(uint64_t address))
{
    struct record r;
    while (bytes) {
        if (bytes < sizeof r) return false;
        memcpy(&r, data, sizeof r);
        data += sizeof r;
        bytes -= sizeof r;
        struct cb_mirror *t = of(r.address);
        if (!t || r.bytes > CB_MIRROR_BLOCK || r.bytes % 4 || !r.words || r.words > r.bytes / 4) return false;
        uint64_t offset = r.address - t->address;
        if (offset % 4 || offset > t->bytes || r.bytes > t->bytes - offset) return false;
        size_t used =
            r.words == r.bytes / 4 ? block_apply(t, &r, data, bytes) : words_apply(t, &r, data, bytes);
        if (!used) return false;
        data += used;
        bytes -= used;
    }
    return true;
}
