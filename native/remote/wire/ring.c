#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "remote/wire/ring.h"

#include "remote/wire/alive.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE_BYTES 4096u
/* of a ring that we make; a ring that we join may have another power of two */
#define RING_BYTES     (1u << 20)
#define RING_BYTES_MIN (1u << 16)
#define RING_BYTES_MAX (1u << 24)
#define SPIN_NS        15000
#define FUTEX_NS       100000000
#define GRACE_MS       60000
#define GRACE_MAX_S    3600
#define PATIENCE_MIN   32 /* polls skipped after polls in vain */
#define PATIENCE_MAX   36

/* Byte counts since the beginning, which wrap; each is written by one side. */
struct way {
    uint32_t written __attribute__((aligned(64)));
    uint32_t read __attribute__((aligned(64)));
    uint32_t reader_sleeps __attribute__((aligned(64)));
    uint32_t writer_sleeps;
    /* incremented by the worker; 0: the worker does not report */
    uint32_t lives __attribute__((aligned(64)));
};

struct ring {
    struct way *in, *out; /* shared */
    uint8_t *in_bytes, *out_bytes;
    uint32_t size, read, written; /* this side's own */
    bool ended;
    bool silent;
    struct cb_alive alive[2]; /* liveness of the worker: for waits for bytes, and for space */
    uint32_t lived[2];
    /* for waits for bytes, and for space: whether polling was worthwhile lately; -1: only one processor */
    int patience[2];
    int refusal;
    void *map;
    size_t mapped;
};

static void ring_close(struct cb_stream *s)
{
    struct ring *r = s->own;
    munmap(r->map, r->mapped);
    free(r);
    close(s->fd);
}

/* ---- waiting ---- */

static uint64_t monotonic_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/*
 * Poll for a change for a moment: the other side is often just about to make it. If it was not, because it has
 * no processor of its own, poll rarely from then on.
 */
static bool word_poll_change(int *patience, const uint32_t *word, uint32_t from)
{
    if (*patience < 0) return false;
    if (*patience < PATIENCE_MIN && ++*patience < PATIENCE_MIN) return false;
    for (uint64_t until = monotonic_ns() + SPIN_NS; monotonic_ns() < until;) {
        for (int i = 0; i < 16; i++) {
            if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != from) {
                *patience = *patience < PATIENCE_MAX ? *patience + 1 : PATIENCE_MAX;
                return true;
            }
#ifdef __x86_64__
            __builtin_ia32_pause();
#endif
        }
    }
    if (--*patience < PATIENCE_MIN) *patience = 0;
    return false;
}

/* Called after a wait in vain; return false if the worker has been silent for too long. */
static bool worker_is_alive(struct ring *r, int which)
{
    uint32_t count = __atomic_load_n(&r->in->lives, __ATOMIC_RELAXED);
    if (!count || !r->alive[which].limit_ms) return true;
    bool heard = count != r->lived[which];
    r->lived[which] = count;
    bool silent = cb_alive_look(&r->alive[which], (int64_t)(monotonic_ns() / 1000000), heard) == CB_IS_SILENT;
    if (silent) r->silent = true;
    return !silent;
}

static void ring_report_alive(struct cb_stream *s)
{
    struct ring *r = s->own;
    uint32_t count = __atomic_load_n(&r->out->lives, __ATOMIC_RELAXED) + 1;
    __atomic_store_n(&r->out->lives, count ? count : 1, __ATOMIC_RELAXED);
}

/* Take the wake-up bytes, sleeping until there are some if `wait`; return false if the connection has ended. */
static bool wakeups_take(struct cb_stream *s, bool wait)
{
    struct ring *r = s->own;
    uint8_t bells[64];
    ssize_t got = recv(s->fd, bells, sizeof bells, wait ? 0 : MSG_DONTWAIT);
    if (got < 0) return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK;
    for (ssize_t i = 0; i < got; i++) {
        if (bells[i]) r->refusal = bells[i];
    }
    return got != 0;
}

static void reader_sleep(struct cb_stream *s)
{
    struct ring *r = s->own;
    __atomic_store_n(&r->in->reader_sleeps, 1, __ATOMIC_SEQ_CST);
    bool none = __atomic_load_n(&r->in->written, __ATOMIC_SEQ_CST) == r->read;
    if (none && (!wakeups_take(s, true) || !worker_is_alive(r, 0))) r->ended = true;
    __atomic_store_n(&r->in->reader_sleeps, 0, __ATOMIC_RELAXED);
}

static bool reader_wake(struct cb_stream *s)
{
    struct ring *r = s->own;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&r->out->reader_sleeps, __ATOMIC_RELAXED) ||
        !__atomic_exchange_n(&r->out->reader_sleeps, 0, __ATOMIC_RELAXED))
        return true;
    const uint8_t bell = 0;
    return send(s->fd, &bell, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1 || errno == EAGAIN || errno == EINTR;
}

static bool writer_sleep(struct cb_stream *s, uint32_t read)
{
    struct ring *r = s->own;
    struct timespec most = {0, FUTEX_NS};
    uint8_t ahead;
    __atomic_store_n(&r->out->writer_sleeps, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &r->out->read, FUTEX_WAIT, read, &most, NULL, 0);
    if (!worker_is_alive(r, 1)) return false;
    ssize_t got = recv(s->fd, &ahead, 1, MSG_PEEK | MSG_DONTWAIT);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

static void writer_wake(struct ring *r, uint32_t left)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (left > r->size / 2 || !__atomic_load_n(&r->in->writer_sleeps, __ATOMIC_RELAXED)) return;
    __atomic_store_n(&r->in->writer_sleeps, 0, __ATOMIC_RELAXED);
    syscall(SYS_futex, &r->in->read, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* ---- bytes ---- */

static void ring_copy_in(const struct ring *r, uint32_t at, const uint8_t *from, uint32_t bytes)
{
    uint32_t place = at & (r->size - 1), first = r->size - place < bytes ? r->size - place : bytes;
    memcpy(r->out_bytes + place, from, first);
    memcpy(r->out_bytes, from + first, bytes - first);
}

static void ring_copy_out(const struct ring *r, uint32_t at, uint8_t *into, uint32_t bytes)
{
    uint32_t place = at & (r->size - 1), first = r->size - place < bytes ? r->size - place : bytes;
    memcpy(into, r->in_bytes + place, first);
    memcpy(into + first, r->in_bytes, bytes - first);
}

static bool ring_send_part(struct cb_stream *s, const uint8_t *at, size_t bytes)
{
    struct ring *r = s->own;
    while (bytes) {
        uint32_t read = __atomic_load_n(&r->out->read, __ATOMIC_ACQUIRE), used = r->written - read;
        if (used > r->size) return false;
        if (used == r->size) {
            if (!reader_wake(s)) return false;
            if (!word_poll_change(&r->patience[1], &r->out->read, read) && !writer_sleep(s, read))
                return false;
            continue;
        }
        uint32_t part = bytes < r->size - used ? (uint32_t)bytes : r->size - used;
        ring_copy_in(r, r->written, at, part);
        r->written += part;
        __atomic_store_n(&r->out->written, r->written, __ATOMIC_RELEASE);
        at += part;
        bytes -= part;
    }
    return true;
}

static bool ring_send(struct cb_stream *s, struct iovec *parts, int count)
{
    for (int i = 0; i < count; i++) {
        if (!ring_send_part(s, parts[i].iov_base, parts[i].iov_len)) return false;
    }
    return reader_wake(s);
}

static size_t ring_receive(struct cb_stream *s, void *into, size_t capacity, bool wait, bool *gone)
{
    struct ring *r = s->own;
    *gone = false;
    for (;;) {
        bool ended = r->ended; /* bytes written before the end are still read */
        uint32_t here = __atomic_load_n(&r->in->written, __ATOMIC_ACQUIRE) - r->read;
        *gone = here > r->size || (!here && ended);
        if (!*gone && !here && !wait) *gone = !worker_is_alive(r, 0);
        if (*gone || (!here && !wait)) return 0;
        if (here) {
            uint32_t part = capacity < here ? (uint32_t)capacity : here;
            ring_copy_out(r, r->read, into, part);
            r->read += part;
            __atomic_store_n(&r->in->read, r->read, __ATOMIC_RELEASE);
            writer_wake(r, here - part);
            return part;
        }
        if (!word_poll_change(&r->patience[0], &r->in->written, r->read)) reader_sleep(s);
    }
}

/* ---- creation ---- */

static const struct cb_stream_kind ring_kind = {ring_send, ring_receive, ring_close, ring_report_alive};

static struct cb_stream ring_map(int fd, int memory, uint32_t size, bool worker)
{
    struct cb_stream none = {NULL, -1, NULL};
    struct ring *r = calloc(1, sizeof *r);
    if (!r) return none;
    r->size = size;
    r->mapped = PAGE_BYTES + 2 * (size_t)size;
    r->map = mmap(NULL, r->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (r->map == MAP_FAILED) {
        free(r);
        return none;
    }
    struct way *ways = r->map;
    uint8_t *bytes = (uint8_t *)r->map + PAGE_BYTES;
    r->in = &ways[worker ? 0 : 1];
    r->out = &ways[worker ? 1 : 0];
    r->in_bytes = bytes + (worker ? 0 : size);
    r->out_bytes = bytes + (worker ? size : 0);
    cpu_set_t cpus;
    bool several = sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) > 1;
    r->patience[0] = r->patience[1] = several ? PATIENCE_MAX : -1;
    return (struct cb_stream){&ring_kind, fd, r};
}

static int ring_grace_ms(void)
{
    const char *text = getenv("CALABASH_REMOTE_GRACE_S");
    char *end = NULL;
    long seconds = text && *text >= '0' && *text <= '9' ? strtol(text, &end, 10) : -1;
    return seconds < 0 || *end || seconds > GRACE_MAX_S ? GRACE_MS : (int)seconds * 1000;
}

struct cb_stream cb_ring_make(int fd, int *memory)
{
    struct cb_stream s = {NULL, -1, NULL};
    *memory = memfd_create("calabash-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*memory < 0) return s;
    if (ftruncate(*memory, PAGE_BYTES + 2 * RING_BYTES) == 0 &&
        fcntl(*memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        s = ring_map(fd, *memory, RING_BYTES, false);
    if (!s.kind) {
        close(*memory);
        *memory = -1;
        return s;
    }
    struct ring *r = s.own;
    r->alive[0].limit_ms = r->alive[1].limit_ms = cb_alive_limit_ms() + ring_grace_ms();
    struct timeval look = {1, 0}; /* a reader that sleeps wakes up for this */
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &look, sizeof look);
    return s;
}

struct cb_stream cb_ring_join(int fd, int memory)
{
    struct cb_stream s = {NULL, -1, NULL};
    struct stat about;
    int seals = fcntl(memory, F_GET_SEALS);
    if (seals >= 0 && seals & F_SEAL_SHRINK && fstat(memory, &about) == 0) {
        uint64_t both = (uint64_t)about.st_size - PAGE_BYTES, size = both / 2;
        bool fits = about.st_size > PAGE_BYTES && both % 2 == 0 && size >= RING_BYTES_MIN &&
                    size <= RING_BYTES_MAX && !(size & (size - 1));
        if (fits) s = ring_map(fd, memory, (uint32_t)size, true);
    }
    close(memory);
    return s;
}

bool cb_ring_is_silent(const struct cb_stream *s)
{
    return s->kind == &ring_kind && ((const struct ring *)s->own)->silent;
}

int cb_ring_refusal(const struct cb_stream *s)
{
    return s->kind == &ring_kind ? ((const struct ring *)s->own)->refusal : 0;
}
