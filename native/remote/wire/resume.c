#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "remote/wire/resume.h"

#include "remote/wire/alive.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define CHUNK_BYTES \
    (260u << 10) /* encrypted data still fits the cache; a piece of a copy and its header fit */
#define ACK_BYTES          (1u << 20) /* received and not yet acknowledged */
#define STORED_BYTES_MAX   (4u << 20) /* read by a thread that only waits to send */
#define FIRST_RECORD_BYTES 16384u     /* what goes into one record */
#define HELLO_MS           5000
#define RECONNECT_MIN_MS   250 /* for an attempt to reconnect, within the grace */
#define RECONNECT_PAUSE_MS 200 /* attempts */
#define LIVENESS_CHECK_MS  250 /* interval of liveness checks */

struct resumed {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct cb_tls *tls;
    enum { UP, DOWN, ENDED } state;
    bool sending, reading, mending; /* a thread is doing this, without the lock */
    bool left;                      /* the other side has announced that it leaves */
    int64_t down_ms;
    int grace_ms;
    cb_resume_dial *dial; /* NULL: the worker's side, which waits to be called back */
    void *own;
    /* Bytes of our direction: accepted, put on this connection, acknowledged. */
    uint64_t given, put, arrived;
    uint8_t *kept;
    /* Bytes of the other direction: taken from the connection, acknowledged to the other side. */
    uint64_t received, told;
    struct cb_chunk header;
    size_t header_got, chunk_left;
    uint8_t *aside;
    size_t aside_from, aside_to;
    struct cb_alive alive; /* liveness of the worker, on the program's side */
    uint64_t there;        /* bytes of the connection that the other machine had at the last check */
    uint64_t turns,
        turns_seen; /* of the receiving thread; its value when the worker's other thread last checked */
    bool heard;     /* data has come since the last check */
    bool ask_due, answer_due; /* a chunk without data is due */
};

static int64_t monotonic_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void state_wait(struct resumed *r, int timeout_ms)
{
    struct timespec until;
    int64_t ms = monotonic_ms() + timeout_ms;
    until.tv_sec = ms / 1000;
    until.tv_nsec = ms % 1000 * 1000000;
    pthread_cond_timedwait(&r->changed, &r->lock, &until);
}

static void connection_break(struct resumed *r)
{
    if (r->state != UP) return;
    r->state = DOWN;
    r->down_ms = monotonic_ms();
    cb_tls_break(r->tls);
    pthread_cond_broadcast(&r->changed);
}

static void stream_begin_destroy(struct resumed *r)
{
    if (r->state == UP) cb_tls_break(r->tls);
    r->state = ENDED;
    pthread_cond_broadcast(&r->changed);
}

/* ---- receiving; by the thread that has set `reading`, without the lock unless stated ---- */

static bool chunk_header_take(struct resumed *r)
{
    pthread_mutex_lock(&r->lock);
    bool good = r->header.bytes <= CHUNK_BYTES && r->header.kind < CB_CHUNK_KINDS &&
                (!r->header.bytes || r->header.kind == CB_CHUNK_BYTES) && r->header.received >= r->arrived &&
                r->header.received <= r->put;
    if (good) r->arrived = r->header.received;
    if (good && r->header.kind == CB_CHUNK_LEAVING) r->left = true;
    if (good && r->header.kind == CB_CHUNK_ASKING) r->answer_due = true;
    r->heard = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    r->chunk_left = r->header.bytes;
    r->header_got = 0;
    return good;
}

/* Return a number of bytes; 0: none available now, -1: the connection is broken. */
static ssize_t chunk_read(struct resumed *r, uint8_t *into, size_t capacity)
{
    while (!r->chunk_left) {
        ssize_t got =
            cb_tls_receive(r->tls, (uint8_t *)&r->header + r->header_got, sizeof r->header - r->header_got);
        if (got <= 0) return got;
        r->header_got += (size_t)got;
        if (r->header_got == sizeof r->header && !chunk_header_take(r)) return -1;
        if (r->left) return -1;
    }
    ssize_t got = cb_tls_receive(r->tls, into, capacity < r->chunk_left ? capacity : r->chunk_left);
    if (got > 0) {
        r->chunk_left -= (size_t)got;
        pthread_mutex_lock(&r->lock);
        r->received += (uint64_t)got;
        r->heard = true;
        pthread_mutex_unlock(&r->lock);
    }
    return got;
}

/*
 * Called after a wait in vain, with the lock: ask a worker that is silent, and break the connection if it is
 * silent for too long.
 */
static void liveness_check(struct resumed *r)
{
    bool more;
    int64_t now = monotonic_ms();
    if (!r->alive.limit_ms || r->state != UP || now - r->alive.looked_ms < LIVENESS_CHECK_MS) return;
    uint64_t there = cb_tls_arrived(r->tls, &more);
    bool moves = more && there > r->there; /* a question to it waits behind all that */
    enum cb_alive_state state = cb_alive_look(&r->alive, now, r->heard || moves);
    r->there = there;
    r->heard = false;
    r->ask_due = r->ask_due || state == CB_IS_TO_BE_ASKED;
    if (state == CB_IS_SILENT) connection_break(r);
}

/* With `reading` set and without the lock: wait until bytes come, or a check or a chunk of our own is due. */
static void connection_wait_readable(struct resumed *r)
{
    pthread_mutex_lock(&r->lock);
    bool due = r->ask_due || r->answer_due;
    pthread_mutex_unlock(&r->lock);
    if (!due) cb_tls_wait(r->tls, POLLIN, r->alive.limit_ms ? cb_alive_slice_ms(&r->alive) : -1);
}

/*
 * Read while waiting to send, because the other side may wait for us to receive. Requires the lock. Return
 * false if there was nothing to do.
 */
static bool store_while_sending(struct resumed *r)
{
    if (r->reading || r->state != UP) return false;
    if (r->aside_from == r->aside_to) r->aside_from = r->aside_to = 0;
    if (!r->aside) r->aside = malloc(STORED_BYTES_MAX);
    if (!r->aside || r->aside_to == STORED_BYTES_MAX) return false;
    r->reading = true;
    pthread_mutex_unlock(&r->lock);
    ssize_t got = chunk_read(r, r->aside + r->aside_to, STORED_BYTES_MAX - r->aside_to);
    pthread_mutex_lock(&r->lock);
    r->reading = false;
    if (got > 0) r->aside_to += (size_t)got;
    if (got < 0) connection_break(r);
    pthread_cond_broadcast(&r->changed);
    return got > 0;
}

/* ---- sending; by the thread that has set `sending`, without the lock ---- */

static bool connection_wait_writable(struct resumed *r)
{
    pthread_mutex_lock(&r->lock);
    bool reads = !r->reading && r->aside_to < STORED_BYTES_MAX;
    pthread_mutex_unlock(&r->lock);
    int came = cb_tls_wait(r->tls, POLLOUT | (reads ? POLLIN : 0), 1000);
    pthread_mutex_lock(&r->lock);
    if (came & POLLIN) store_while_sending(r);
    if (!came) liveness_check(r);
    bool good = r->state == UP;
    pthread_mutex_unlock(&r->lock);
    return good;
}

static bool connection_put(struct resumed *r, const uint8_t *data, size_t bytes)
{
    while (bytes) {
        ssize_t sent = cb_tls_send(r->tls, data, bytes);
        if (sent < 0) return false;
        data += sent;
        bytes -= (size_t)sent;
        if (bytes && !connection_wait_writable(r)) return false;
    }
    return true;
}

static bool chunk_put(struct resumed *r, const struct cb_chunk *header, const uint8_t *data)
{
    uint8_t first[FIRST_RECORD_BYTES];
    size_t with = header->bytes < FIRST_RECORD_BYTES - sizeof *header ? header->bytes
                                                                      : FIRST_RECORD_BYTES - sizeof *header;
    memcpy(first, header, sizeof *header);
    if (with) memcpy(first + sizeof *header, data, with);
    return connection_put(r, first, sizeof *header + with) &&
           (with == header->bytes || connection_put(r, data + with, header->bytes - with));
}

static bool has_pending_output(const struct resumed *r)
{
    return r->put < r->given || r->received - r->told >= ACK_BYTES || r->ask_due || r->answer_due;
}

/* Put what is pending on the connection. Requires the lock. */
static void output_flush(struct resumed *r)
{
    while (r->state == UP && !r->sending && has_pending_output(r)) {
        size_t place = r->put % CB_KEPT_BYTES, bytes = r->given - r->put;
        if (bytes > CB_KEPT_BYTES - place) bytes = CB_KEPT_BYTES - place;
        if (bytes > CHUNK_BYTES) bytes = CHUNK_BYTES;
        bool asks = !bytes && r->ask_due;
        struct cb_chunk header = {(uint32_t)bytes, asks ? CB_CHUNK_ASKING : CB_CHUNK_BYTES, r->received};
        if (asks) r->ask_due = false;
        r->answer_due = false;
        r->told = r->received;
        r->put += bytes;
        r->sending = true;
        pthread_mutex_unlock(&r->lock);
        bool good = chunk_put(r, &header, r->kept + place);
        while (good && cb_tls_unsent(r->tls))
            good = connection_wait_writable(r);
        pthread_mutex_lock(&r->lock);
        r->sending = false;
        pthread_cond_broadcast(&r->changed);
        if (!good) connection_break(r);
    }
}

/* ---- reconnecting ---- */

static bool hello_exchange(struct cb_tls *t, void *data, size_t bytes, bool out, int timeout_ms)
{
    uint8_t *at = data;
    for (int64_t until = monotonic_ms() + timeout_ms; monotonic_ms() < until;) {
        ssize_t done = bytes ? (out ? cb_tls_send(t, at, bytes) : cb_tls_receive(t, at, bytes)) : 0;
        if (done < 0) return false;
        at += done;
        bytes -= (size_t)done;
        if (!bytes && !(out && cb_tls_unsent(t))) return true;
        if (!done) cb_tls_wait(t, out ? POLLOUT : POLLIN, (int)(until - monotonic_ms()) + 1);
    }
    return false;
}

/* Requires the lock. Continue on the connection `t` from the other side's position. */
static bool stream_continue_on(struct resumed *r, struct cb_tls *t, uint64_t received)
{
    while (r->sending || r->reading)
        pthread_cond_wait(&r->changed, &r->lock); /* the threads find the old connection broken */
    if (r->state == ENDED || received < r->arrived || received > r->given) return false;
    if (r->tls) cb_tls_close(r->tls);
    r->tls = t;
    r->put = r->arrived = received;
    r->told = r->received;
    r->header_got = r->chunk_left = 0;
    r->there = 0;
    r->heard = true;
    r->ask_due = r->answer_due = false;
    r->state = UP;
    pthread_cond_broadcast(&r->changed);
    output_flush(r);
    return true;
}

/* Reconnect, on the program's side. Requires the lock; afterwards there may or may not be a connection. */
static void stream_reconnect(struct resumed *r)
{
    struct cb_resume_hello hello = {CB_RESUME_MAGIC, (uint32_t)r->grace_ms, CB_RESUME_AGAIN, r->received};
    r->mending = true;
    while (r->sending || r->reading)
        pthread_cond_wait(&r->changed, &r->lock);
    hello.received = r->received;
    int64_t left = r->down_ms + r->grace_ms - monotonic_ms();
    int timeout_ms = left < RECONNECT_MIN_MS ? RECONNECT_MIN_MS : left < HELLO_MS ? (int)left : HELLO_MS;
    pthread_mutex_unlock(&r->lock);
    struct cb_tls *t = r->dial(r->own, timeout_ms);
    bool good = t && hello_exchange(t, &hello, sizeof hello, true, timeout_ms) &&
                hello_exchange(t, &hello, sizeof hello, false, timeout_ms) && hello.magic == CB_RESUME_MAGIC;
    pthread_mutex_lock(&r->lock);
    if (good && hello.flags & CB_RESUME_GONE) stream_begin_destroy(r);
    if (good && r->state == DOWN) good = stream_continue_on(r, t, hello.received);
    if (t && t != r->tls) cb_tls_close(t);
    if (!good && r->state == DOWN) state_wait(r, RECONNECT_PAUSE_MS);
    r->mending = false;
    pthread_cond_broadcast(&r->changed);
}

/*
 * Requires the lock. While there is no connection, reconnect or wait for one. Return false if the stream has
 * ended.
 */
static bool stream_wait_connected(struct resumed *r)
{
    while (r->state == DOWN) {
        int64_t left = r->down_ms + r->grace_ms - monotonic_ms();
        if (r->left || left <= 0)
            stream_begin_destroy(r);
        else if (r->dial && !r->mending)
            stream_reconnect(r);
        else
            state_wait(r, (int)left);
    }
    return r->state == UP;
}

bool cb_resume_reconnect(struct cb_stream *s, struct cb_tls *again, int timeout_ms)
{
    struct resumed *r = s->own;
    struct cb_resume_hello hello;
    bool good =
        hello_exchange(again, &hello, sizeof hello, false, timeout_ms) && hello.magic == CB_RESUME_MAGIC;
    pthread_mutex_lock(&r->lock);
    if (good) connection_break(r); /* the other side knows better whether the connection works */
    while (good && (r->sending || r->reading))
        pthread_cond_wait(&r->changed, &r->lock);
    bool known = good && hello.flags == CB_RESUME_AGAIN && r->state == DOWN && hello.received >= r->arrived &&
                 hello.received <= r->given;
    struct cb_resume_hello told = {CB_RESUME_MAGIC, (uint32_t)r->grace_ms, known ? 0 : CB_RESUME_GONE,
                                   r->received};
    if (good) good = hello_exchange(again, &told, sizeof told, true, timeout_ms);
    good = good && known && stream_continue_on(r, again, hello.received);
    pthread_mutex_unlock(&r->lock);
    if (!good) cb_tls_close(again);
    return good;
}

/* ---- the stream ---- */

static bool stream_send_part(struct resumed *r, const uint8_t *data, size_t bytes)
{
    while (bytes) {
        if (!stream_wait_connected(r)) return false;
        size_t capacity = CB_KEPT_BYTES - (r->given - r->arrived), place = r->given % CB_KEPT_BYTES;
        if (capacity > CB_KEPT_BYTES - place) capacity = CB_KEPT_BYTES - place;
        if (capacity > bytes) capacity = bytes;
        if (capacity > CHUNK_BYTES - (r->given - r->put) % CHUNK_BYTES)
            capacity = CHUNK_BYTES - (r->given - r->put) % CHUNK_BYTES;
        /* wait for an acknowledgement; the receiving thread reads it, which may be this one */
        if (!capacity) {
            uint64_t arrived = r->arrived;
            output_flush(r);
            if (store_while_sending(r) || r->state != UP || r->arrived != arrived) continue;
            if (r->reading || r->aside_to == STORED_BYTES_MAX) {
                state_wait(r, 100);
            } else { /* all that has come is read: more space, or a break, ends the wait */
                r->reading = true;
                pthread_mutex_unlock(&r->lock);
                connection_wait_readable(r);
                pthread_mutex_lock(&r->lock);
                r->reading = false;
                liveness_check(r);
                pthread_cond_broadcast(&r->changed);
            }
            continue;
        }
        memcpy(r->kept + place, data, capacity);
        r->given += capacity;
        data += capacity;
        bytes -= capacity;
        if (r->given - r->put >= CHUNK_BYTES) output_flush(r);
    }
    return true;
}

static bool stream_send(struct cb_stream *s, struct iovec *parts, int count)
{
    struct resumed *r = s->own;
    bool good = true;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < count && good; i++)
        good = stream_send_part(r, parts[i].iov_base, parts[i].iov_len);
    output_flush(r);
    good = good && r->state != ENDED;
    pthread_mutex_unlock(&r->lock);
    return good;
}

static size_t stored_take(struct resumed *r, void *into, size_t capacity)
{
    size_t here = r->aside_to - r->aside_from;
    if (here > capacity) here = capacity;
    if (here) memcpy(into, r->aside + r->aside_from, here);
    r->aside_from += here;
    return here;
}

static size_t stream_receive(struct cb_stream *s, void *into, size_t capacity, bool wait, bool *gone)
{
    struct resumed *r = s->own;
    size_t here = 0;
    pthread_mutex_lock(&r->lock);
    r->turns++;
    while (!(here = stored_take(r, into, capacity))) {
        if (!stream_wait_connected(r)) break;
        if (r->reading) {
            state_wait(r, 1000);
            continue;
        }
        r->reading = true;
        pthread_mutex_unlock(&r->lock);
        ssize_t got = chunk_read(r, into, capacity);
        if (got == 0 && wait) connection_wait_readable(r);
        pthread_mutex_lock(&r->lock);
        r->reading = false;
        pthread_cond_broadcast(&r->changed);
        if (got < 0) connection_break(r);
        here = got > 0 ? (size_t)got : 0;
        if (!here) liveness_check(r);
        if (here || !wait) break;
        if (r->ask_due || r->answer_due) output_flush(r);
    }
    output_flush(r); /* acknowledge now and then what has arrived */
    *gone = !here && r->state == ENDED;
    pthread_mutex_unlock(&r->lock);
    return here;
}

static void stream_close(struct cb_stream *s)
{
    struct resumed *r = s->own;
    if (r->tls) cb_tls_close(r->tls);
    munmap(r->kept, CB_KEPT_BYTES);
    free(r->aside);
    free(r);
}

/*
 * Report that the worker lives. The worker may be in a long call and not receive: what comes meanwhile is
 * stored, and a question answered. Once the store is full no question can be read.
 */
static void stream_report_alive(struct cb_stream *s)
{
    struct resumed *r = s->own;
    pthread_mutex_lock(&r->lock);
    bool receives = r->turns != r->turns_seen;
    r->turns_seen = r->turns;
    while (!receives && store_while_sending(r)) {
    }
    if (!receives && !r->reading && r->aside_to == STORED_BYTES_MAX) r->answer_due = true;
    output_flush(r);
    pthread_mutex_unlock(&r->lock);
}

static const struct cb_stream_kind kind = {stream_send, stream_receive, stream_close, stream_report_alive};

bool cb_resume_is(const struct cb_stream *s)
{
    return s->kind == &kind;
}

void cb_resume_leave(struct cb_stream *s)
{
    struct resumed *r = s->own;
    pthread_mutex_lock(&r->lock);
    if (r->state == UP && !r->sending) {
        struct cb_chunk header = {0, CB_CHUNK_LEAVING, r->received};
        hello_exchange(r->tls, &header, sizeof header, true, 1000);
        r->state = ENDED;
    }
    pthread_mutex_unlock(&r->lock);
}

int cb_resume_left_ms(struct cb_stream *s)
{
    struct resumed *r = s->own;
    pthread_mutex_lock(&r->lock);
    int64_t left = r->down_ms + r->grace_ms - monotonic_ms();
    int answer = r->state != DOWN ? -1 : left < 0 ? 0 : (int)left;
    if (!answer) stream_begin_destroy(r);
    pthread_mutex_unlock(&r->lock);
    return answer;
}

static struct cb_stream stream_make(struct cb_tls *first, int grace_ms)
{
    pthread_condattr_t clock;
    struct cb_stream s = {NULL, -1, NULL};
    struct resumed *r = calloc(1, sizeof *r);
    void *kept = mmap(NULL, CB_KEPT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!r || kept == MAP_FAILED) {
        if (kept != MAP_FAILED) munmap(kept, CB_KEPT_BYTES);
        free(r);
        cb_tls_close(first);
        return s;
    }
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, &clock);
    r->tls = first;
    r->grace_ms = grace_ms;
    r->kept = kept;
    return (struct cb_stream){&kind, -1, r};
}

struct cb_stream cb_resume_client(struct cb_tls *first, int grace_ms, cb_resume_dial *dial, void *own)
{
    struct cb_stream none = {NULL, -1, NULL};
    struct cb_resume_hello hello = {CB_RESUME_MAGIC, (uint32_t)grace_ms, 0, 0};
    if (!hello_exchange(first, &hello, sizeof hello, true, HELLO_MS)) {
        cb_tls_close(first);
        return none;
    }
    struct cb_stream s = stream_make(first, grace_ms);
    if (!s.kind) return s;
    struct resumed *r = s.own;
    r->dial = dial;
    r->own = own;
    r->alive.limit_ms = cb_alive_limit_ms();
    return s;
}

struct cb_stream cb_resume_server(struct cb_tls *first, int timeout_ms)
{
    struct cb_stream none = {NULL, -1, NULL};
    struct cb_resume_hello hello;
    bool good = hello_exchange(first, &hello, sizeof hello, false, timeout_ms) &&
                hello.magic == CB_RESUME_MAGIC && hello.grace_ms <= CB_GRACE_MAX_MS;
    if (good && hello.flags == 0 && hello.received == 0) return stream_make(first, (int)hello.grace_ms);
    struct cb_resume_hello gone = {CB_RESUME_MAGIC, 0, CB_RESUME_GONE, 0};
    if (good) hello_exchange(first, &gone, sizeof gone, true, timeout_ms);
    cb_tls_close(first);
    return none;
}
