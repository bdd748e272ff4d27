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
    (260u << 10) /* what is encrypted is still in the cache; a piece of a copy and its header fit */
#define ACK_BYTES   (1u << 20) /* received and not yet told */
#define ASIDE_BYTES (4u << 20) /* read by who only waits to send */
#define FIRST_BYTES 16384u     /* what goes into one record */
#define HELLO_MS    5000
#define LEAST_MS    250 /* for an attempt to connect again, and within the grace */
#define BETWEEN_MS  200 /* attempts */
#define LOOK_MS     250 /* whether the other side lives */

struct resumed {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct cb_tls *tls;
    enum { UP, DOWN, ENDED } state;
    bool sending, reading, mending; /* somebody is at it, without the lock */
    bool left;                      /* the other side has said that it leaves */
    int64_t down_ms;
    int grace_ms;
    cb_resume_dial *dial; /* NULL: the worker's side, which is called back */
    void *own;
    /* Bytes of our direction: given to us, put on this connection, known to have arrived. */
    uint64_t given, put, arrived;
    uint8_t *kept;
    /* Bytes of the other direction: taken from the connection, told to the other side. */
    uint64_t received, told;
    struct cb_chunk header;
    size_t header_got, chunk_left;
    uint8_t *aside;
    size_t aside_from, aside_to;
    struct cb_alive alive;      /* of the worker, for the program's side */
    uint64_t there;             /* bytes of the connection that the other machine has, when we last looked */
    uint64_t turns, turns_seen; /* of whoever receives, when the other thread of the worker last looked */
    bool heard;                 /* something has come since we looked */
    bool ask_due, answer_due;   /* a chunk for itself */
};

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void wait_for_change(struct resumed *r, int timeout_ms)
{
    struct timespec until;
    int64_t ms = now_ms() + timeout_ms;
    until.tv_sec = ms / 1000;
    until.tv_nsec = ms % 1000 * 1000000;
    pthread_cond_timedwait(&r->changed, &r->lock, &until);
}

static void broken(struct resumed *r)
{
    if (r->state != UP) return;
    r->state = DOWN;
    r->down_ms = now_ms();
    cb_tls_break(r->tls);
    pthread_cond_broadcast(&r->changed);
}

static void over(struct resumed *r)
{
    if (r->state == UP) cb_tls_break(r->tls);
    r->state = ENDED;
    pthread_cond_broadcast(&r->changed);
}

/* ---- receiving; by who has set `reading`, without the lock but where it says so ---- */

static bool take_header(struct resumed *r)
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

/* Bytes; 0: nothing is there now, -1: the connection is broken. */
static ssize_t read_some(struct resumed *r, uint8_t *into, size_t room)
{
    while (!r->chunk_left) {
        ssize_t got =
            cb_tls_receive(r->tls, (uint8_t *)&r->header + r->header_got, sizeof r->header - r->header_got);
        if (got <= 0) return got;
        r->header_got += (size_t)got;
        if (r->header_got == sizeof r->header && !take_header(r)) return -1;
        if (r->left) return -1;
    }
    ssize_t got = cb_tls_receive(r->tls, into, room < r->chunk_left ? room : r->chunk_left);
    if (got > 0) {
        r->chunk_left -= (size_t)got;
        pthread_mutex_lock(&r->lock);
        r->received += (uint64_t)got;
        r->heard = true;
        pthread_mutex_unlock(&r->lock);
    }
    return got;
}

/* After waiting in vain. With the lock: a worker that is silent for too long is left, and one that is for a while is asked. */
static void look(struct resumed *r)
{
    bool more;
    int64_t now = now_ms();
    if (!r->alive.limit_ms || r->state != UP || now - r->alive.looked_ms < LOOK_MS) return;
    uint64_t there = cb_tls_arrived(r->tls, &more);
    bool moves = more && there > r->there; /* a question to it stands behind all that */
    enum cb_alive_state state = cb_alive_look(&r->alive, now, r->heard || moves);
    r->there = there;
    r->heard = false;
    r->ask_due = r->ask_due || state == CB_IS_TO_BE_ASKED;
    if (state == CB_IS_SILENT) broken(r);
}

/* With `reading` set and without the lock: until something comes, or it is time to look, or to say something. */
static void wait_for_bytes(struct resumed *r)
{
    pthread_mutex_lock(&r->lock);
    bool due = r->ask_due || r->answer_due;
    pthread_mutex_unlock(&r->lock);
    if (!due) cb_tls_wait(r->tls, POLLIN, r->alive.limit_ms ? cb_alive_slice_ms(&r->alive) : -1);
}

/* While we wait to send: the other side may wait for us to receive. With the lock; false: there is nothing to do. */
static bool read_aside(struct resumed *r)
{
    if (r->reading || r->state != UP) return false;
    if (r->aside_from == r->aside_to) r->aside_from = r->aside_to = 0;
    if (!r->aside) r->aside = malloc(ASIDE_BYTES);
    if (!r->aside || r->aside_to == ASIDE_BYTES) return false;
    r->reading = true;
    pthread_mutex_unlock(&r->lock);
    ssize_t got = read_some(r, r->aside + r->aside_to, ASIDE_BYTES - r->aside_to);
    pthread_mutex_lock(&r->lock);
    r->reading = false;
    if (got > 0) r->aside_to += (size_t)got;
    if (got < 0) broken(r);
    pthread_cond_broadcast(&r->changed);
    return got > 0;
}

/* ---- sending; by who has set `sending`, without the lock ---- */

static bool wait_to_send(struct resumed *r)
{
    pthread_mutex_lock(&r->lock);
    bool reads = !r->reading && r->aside_to < ASIDE_BYTES;
    pthread_mutex_unlock(&r->lock);
    int came = cb_tls_wait(r->tls, POLLOUT | (reads ? POLLIN : 0), 1000);
    pthread_mutex_lock(&r->lock);
    if (came & POLLIN) read_aside(r);
    if (!came) look(r);
    bool good = r->state == UP;
    pthread_mutex_unlock(&r->lock);
    return good;
}

static bool put_all(struct resumed *r, const uint8_t *data, size_t bytes)
{
    while (bytes) {
        ssize_t sent = cb_tls_send(r->tls, data, bytes);
        if (sent < 0) return false;
        data += sent;
        bytes -= (size_t)sent;
        if (bytes && !wait_to_send(r)) return false;
    }
    return true;
}

static bool put_chunk(struct resumed *r, const struct cb_chunk *header, const uint8_t *data)
{
    uint8_t first[FIRST_BYTES];
    size_t with = header->bytes < FIRST_BYTES - sizeof *header ? header->bytes : FIRST_BYTES - sizeof *header;
    memcpy(first, header, sizeof *header);
    if (with) memcpy(first + sizeof *header, data, with);
    return put_all(r, first, sizeof *header + with) &&
           (with == header->bytes || put_all(r, data + with, header->bytes - with));
}

static bool wants_sending(const struct resumed *r)
{
    return r->put < r->given || r->received - r->told >= ACK_BYTES || r->ask_due || r->answer_due;
}

/* Put on the connection what is not yet there. With the lock. */
static void push(struct resumed *r)
{
    while (r->state == UP && !r->sending && wants_sending(r)) {
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
        bool good = put_chunk(r, &header, r->kept + place);
        while (good && cb_tls_unsent(r->tls))
            good = wait_to_send(r);
        pthread_mutex_lock(&r->lock);
        r->sending = false;
        pthread_cond_broadcast(&r->changed);
        if (!good) broken(r);
    }
}

/* ---- another connection ---- */

static bool exchange(struct cb_tls *t, void *data, size_t bytes, bool out, int timeout_ms)
{
    uint8_t *at = data;
    for (int64_t until = now_ms() + timeout_ms; now_ms() < until;) {
        ssize_t done = bytes ? (out ? cb_tls_send(t, at, bytes) : cb_tls_receive(t, at, bytes)) : 0;
        if (done < 0) return false;
        at += done;
        bytes -= (size_t)done;
        if (!bytes && !(out && cb_tls_unsent(t))) return true;
        if (!done) cb_tls_wait(t, out ? POLLOUT : POLLIN, (int)(until - now_ms()) + 1);
    }
    return false;
}

/* With the lock: from here on `t` carries us, from where the other side is. */
static bool go_on(struct resumed *r, struct cb_tls *t, uint64_t received)
{
    while (r->sending || r->reading)
        pthread_cond_wait(&r->changed, &r->lock); /* they find the old one broken */
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
    push(r);
    return true;
}

/* The program's side. With the lock; the connection is there or not afterwards. */
static void connect_again(struct resumed *r)
{
    struct cb_resume_hello hello = {CB_RESUME_MAGIC, (uint32_t)r->grace_ms, CB_RESUME_AGAIN, r->received};
    r->mending = true;
    while (r->sending || r->reading)
        pthread_cond_wait(&r->changed, &r->lock);
    hello.received = r->received;
    int64_t left = r->down_ms + r->grace_ms - now_ms();
    int timeout_ms = left < LEAST_MS ? LEAST_MS : left < HELLO_MS ? (int)left : HELLO_MS;
    pthread_mutex_unlock(&r->lock);
    struct cb_tls *t = r->dial(r->own, timeout_ms);
    bool good = t && exchange(t, &hello, sizeof hello, true, timeout_ms) &&
                exchange(t, &hello, sizeof hello, false, timeout_ms) && hello.magic == CB_RESUME_MAGIC;
    pthread_mutex_lock(&r->lock);
    if (good && hello.flags & CB_RESUME_GONE) over(r);
    if (good && r->state == DOWN) good = go_on(r, t, hello.received);
    if (t && t != r->tls) cb_tls_close(t);
    if (!good && r->state == DOWN) wait_for_change(r, BETWEEN_MS);
    r->mending = false;
    pthread_cond_broadcast(&r->changed);
}

/* With the lock: while there is no connection, see to one or wait for it. False: it has ended. */
static bool connected(struct resumed *r)
{
    while (r->state == DOWN) {
        int64_t left = r->down_ms + r->grace_ms - now_ms();
        if (r->left || left <= 0)
            over(r);
        else if (r->dial && !r->mending)
            connect_again(r);
        else
            wait_for_change(r, (int)left);
    }
    return r->state == UP;
}

bool cb_resume_back(struct cb_stream *s, struct cb_tls *again, int timeout_ms)
{
    struct resumed *r = s->own;
    struct cb_resume_hello hello;
    bool good = exchange(again, &hello, sizeof hello, false, timeout_ms) && hello.magic == CB_RESUME_MAGIC;
    pthread_mutex_lock(&r->lock);
    if (good) broken(r); /* it knows better than we */
    while (good && (r->sending || r->reading))
        pthread_cond_wait(&r->changed, &r->lock);
    bool known = good && hello.flags == CB_RESUME_AGAIN && r->state == DOWN && hello.received >= r->arrived &&
                 hello.received <= r->given;
    struct cb_resume_hello told = {CB_RESUME_MAGIC, (uint32_t)r->grace_ms, known ? 0 : CB_RESUME_GONE,
                                   r->received};
    if (good) good = exchange(again, &told, sizeof told, true, timeout_ms);
    good = good && known && go_on(r, again, hello.received);
    pthread_mutex_unlock(&r->lock);
    if (!good) cb_tls_close(again);
    return good;
}

/* ---- the stream ---- */

static bool send_part(struct resumed *r, const uint8_t *data, size_t bytes)
{
    while (bytes) {
        if (!connected(r)) return false;
        size_t room = CB_KEPT_BYTES - (r->given - r->arrived), place = r->given % CB_KEPT_BYTES;
        if (room > CB_KEPT_BYTES - place) room = CB_KEPT_BYTES - place;
        if (room > bytes) room = bytes;
        if (room > CHUNK_BYTES - (r->given - r->put) % CHUNK_BYTES)
            room = CHUNK_BYTES - (r->given - r->put) % CHUNK_BYTES;
        if (!room) { /* until something has arrived; whoever receives learns it, and that may be us */
            uint64_t arrived = r->arrived;
            push(r);
            if (read_aside(r) || r->state != UP || r->arrived != arrived) continue;
            if (r->reading || r->aside_to == ASIDE_BYTES) {
                wait_for_change(r, 100);
            } else { /* all that has come is read: more makes room, or a break ends the wait */
                r->reading = true;
                pthread_mutex_unlock(&r->lock);
                wait_for_bytes(r);
                pthread_mutex_lock(&r->lock);
                r->reading = false;
                look(r);
                pthread_cond_broadcast(&r->changed);
            }
            continue;
        }
        memcpy(r->kept + place, data, room);
        r->given += room;
        data += room;
        bytes -= room;
        if (r->given - r->put >= CHUNK_BYTES) push(r);
    }
    return true;
}

static bool send_all(struct cb_stream *s, struct iovec *parts, int count)
{
    struct resumed *r = s->own;
    bool good = true;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < count && good; i++)
        good = send_part(r, parts[i].iov_base, parts[i].iov_len);
    push(r);
    good = good && r->state != ENDED;
    pthread_mutex_unlock(&r->lock);
    return good;
}

static size_t take_aside(struct resumed *r, void *into, size_t room)
{
    size_t here = r->aside_to - r->aside_from;
    if (here > room) here = room;
    if (here) memcpy(into, r->aside + r->aside_from, here);
    r->aside_from += here;
    return here;
}

static size_t receive_some(struct cb_stream *s, void *into, size_t room, bool wait, bool *gone)
{
    struct resumed *r = s->own;
    size_t here = 0;
    pthread_mutex_lock(&r->lock);
    r->turns++;
    while (!(here = take_aside(r, into, room))) {
        if (!connected(r)) break;
        if (r->reading) {
            wait_for_change(r, 1000);
            continue;
        }
        r->reading = true;
        pthread_mutex_unlock(&r->lock);
        ssize_t got = read_some(r, into, room);
        if (got == 0 && wait) wait_for_bytes(r);
        pthread_mutex_lock(&r->lock);
        r->reading = false;
        pthread_cond_broadcast(&r->changed);
        if (got < 0) broken(r);
        here = got > 0 ? (size_t)got : 0;
        if (!here) look(r);
        if (here || !wait) break;
        if (r->ask_due || r->answer_due) push(r);
    }
    push(r); /* what has arrived is told, now and then */
    *gone = !here && r->state == ENDED;
    pthread_mutex_unlock(&r->lock);
    return here;
}

static void close_it(struct cb_stream *s)
{
    struct resumed *r = s->own;
    if (r->tls) cb_tls_close(r->tls);
    munmap(r->kept, CB_KEPT_BYTES);
    free(r->aside);
    free(r);
}

/* The worker may be in a long call and not receive: what comes meanwhile is put aside, and a question answered. When no more
 * can be put aside nobody can hear one. */
static void live(struct cb_stream *s)
{
    struct resumed *r = s->own;
    pthread_mutex_lock(&r->lock);
    bool receives = r->turns != r->turns_seen;
    r->turns_seen = r->turns;
    while (!receives && read_aside(r)) {
    }
    if (!receives && !r->reading && r->aside_to == ASIDE_BYTES) r->answer_due = true;
    push(r);
    pthread_mutex_unlock(&r->lock);
}

static const struct cb_stream_kind kind = {send_all, receive_some, close_it, live};

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
        exchange(r->tls, &header, sizeof header, true, 1000);
        r->state = ENDED;
    }
    pthread_mutex_unlock(&r->lock);
}

int cb_resume_left_ms(struct cb_stream *s)
{
    struct resumed *r = s->own;
    pthread_mutex_lock(&r->lock);
    int64_t left = r->down_ms + r->grace_ms - now_ms();
    int answer = r->state != DOWN ? -1 : left < 0 ? 0 : (int)left;
    if (!answer) over(r);
    pthread_mutex_unlock(&r->lock);
    return answer;
}

static struct cb_stream made(struct cb_tls *first, int grace_ms)
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
    if (!exchange(first, &hello, sizeof hello, true, HELLO_MS)) {
        cb_tls_close(first);
        return none;
    }
    struct cb_stream s = made(first, grace_ms);
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
    bool good = exchange(first, &hello, sizeof hello, false, timeout_ms) && hello.magic == CB_RESUME_MAGIC &&
                hello.grace_ms <= CB_GRACE_MAX_MS;
    if (good && hello.flags == 0 && hello.received == 0) return made(first, (int)hello.grace_ms);
    struct cb_resume_hello gone = {CB_RESUME_MAGIC, 0, CB_RESUME_GONE, 0};
    if (good) exchange(first, &gone, sizeof gone, true, timeout_ms);
    cb_tls_close(first);
    return none;
}
