#include "remote/client/connection/answers.h"

#include "remote/client/connection/command_buffer.h"
#include "remote/client/context/context_stack.h"
#include "remote/wire/frame.h"

#include <stdio.h>

static struct answers {
    pthread_mutex_t lock;
    pthread_cond_t came;
    struct cb_answer *first; /* waiting threads */
    bool being_read;
} answers = {.lock = PTHREAD_MUTEX_INITIALIZER, .came = PTHREAD_COND_INITIALIZER};

static cb_notice_taker *takers[CB_NOTICE_COUNT];

static struct { /* bytes received and not yet interpreted; used by the reading thread */
    uint8_t bytes[64 << 10];
    size_t from, to;
    bool little; /* a header comes next, before bulk data that is to be read directly into its destination */
} inbox;

#define DIRECT_READ_BYTES 4096
#define HEADER_BYTES      (sizeof(struct cb_frame) + sizeof(uint64_t)) /* with the result */

static bool inbox_fill(void)
{
    bool gone = false;
    inbox.from = inbox.to = 0;
    size_t capacity = inbox.little ? HEADER_BYTES : sizeof inbox.bytes;
    inbox.to = cb_transport_receive(&cb_command_buffer.link, inbox.bytes, capacity, true, &gone);
    cb_counters.received_bytes += inbox.to;
    return inbox.to != 0;
}

bool cb_notice_receive(void *into, size_t bytes)
{
    uint8_t *at = into;
    while (bytes) {
        size_t ready = inbox.to - inbox.from;
        if (!ready && bytes >= DIRECT_READ_BYTES) { /* much: directly into its destination */
            bool gone = false;
            size_t got = cb_transport_receive(&cb_command_buffer.link, at, bytes, true, &gone);
            if (!got) return false;
            cb_counters.received_bytes += got;
            at += got;
            bytes -= got;
            continue;
        }
        if (!ready && !inbox_fill()) return false;
        ready = inbox.to - inbox.from;
        if (ready > bytes) ready = bytes;
        memcpy(at, inbox.bytes + inbox.from, ready);
        inbox.from += ready;
        at += ready;
        bytes -= ready;
    }
    return true;
}

static struct cb_answer *answer_find(uint32_t seq)
{
    pthread_mutex_lock(&answers.lock);
    struct cb_answer *a = answers.first;
    while (a && a->seq != seq)
        a = a->next;
    pthread_mutex_unlock(&answers.lock);
    return a;
}

static void answer_complete(struct cb_answer *a, CUresult result)
{
    pthread_mutex_lock(&answers.lock);
    struct cb_answer **at = &answers.first;
    while (*at && *at != a)
        at = &(*at)->next;
    if (*at) *at = a->next;
    a->result = result;
    a->done = true;
    pthread_cond_broadcast(&answers.came);
    pthread_mutex_unlock(&answers.lock);
}

static bool answer_read(const struct cb_frame *f)
{
    uint64_t result;
    struct cb_answer *a = answer_find(f->seq);
    if (!a || f->bytes < sizeof result || !cb_notice_receive(&result, sizeof result)) return false;
    inbox.little = a->bulk_left && f->flags & CB_FRAME_PART;
    size_t rest = f->bytes - sizeof result;
    if (a->bulk_left && result == CUDA_SUCCESS) {
        if (rest > a->bulk_left || !cb_notice_receive(a->bulk, rest)) return false;
        a->bulk += rest;
        a->bulk_left -= rest;
        if (f->flags & CB_FRAME_PART) return true;
        rest = 0;
        if (a->bulk_left) return false;
    }
    if (rest > CB_ANSWER_MAX) return false;
    a->got = rest <= sizeof a->small ? a->small : malloc(rest);
    if (!a->got || !cb_notice_receive(a->got, rest)) return false;
    a->got_bytes = rest;
    answer_complete(a, (CUresult)result);
    return true;
}

static bool frame_read(void)
{
    struct cb_frame f;
    uint64_t result;
    if (!cb_notice_receive(&f, sizeof f)) return false;
    switch (f.op) {
    case CB_ANSWER:
        return answer_read(&f);
    case CB_FAILED:
        if (f.bytes != sizeof result || !cb_notice_receive(&result, sizeof result)) return false;
        cb_context_failed(f.context, (CUresult)result);
        return true;
    default:
        return f.op < CB_NOTICE_COUNT && takers[f.op] && takers[f.op](&f);
    }
}

void cb_answers_lost(void)
{
    static bool told; /* a thread that could not send may have found it out first */
    pthread_mutex_lock(&cb_command_buffer.lock);
    if (!told)
        fprintf(stderr, "calabash: the connection to the GPU is lost%s\n",
                cb_transport_reason(&cb_command_buffer.link));
    cb_command_buffer.gone = told = true;
    pthread_mutex_unlock(&cb_command_buffer.lock);
    pthread_mutex_lock(&answers.lock);
    for (struct cb_answer *a = answers.first; a; a = a->next) {
        a->result = CUDA_ERROR_DEVICE_UNAVAILABLE;
        a->got_bytes = 0;
        a->done = true;
    }
    answers.first = NULL;
    pthread_cond_broadcast(&answers.came);
    pthread_mutex_unlock(&answers.lock);
}

void cb_answer_expect(struct cb_answer *a)
{
    pthread_mutex_lock(&answers.lock);
    a->next = answers.first;
    answers.first = a;
    pthread_mutex_unlock(&answers.lock);
}

CUresult cb_answer_await(struct cb_answer *a)
{
    pthread_mutex_lock(&answers.lock);
    while (!a->done) {
        if (answers.being_read) {
            pthread_cond_wait(&answers.came, &answers.lock);
            continue;
        }
        answers.being_read = true;
        bool ok = true;
        while (ok && !a->done) {
            pthread_mutex_unlock(&answers.lock);
            ok = frame_read();
            pthread_mutex_lock(&answers.lock);
        }
        answers.being_read = false;
        pthread_cond_broadcast(&answers.came);
        if (!ok) {
            pthread_mutex_unlock(&answers.lock);
            cb_answers_lost();
            pthread_mutex_lock(&answers.lock);
        }
    }
    pthread_mutex_unlock(&answers.lock);
    return a->result;
}

static bool inbox_poll(bool *gone)
{
    *gone = false;
    if (inbox.from < inbox.to) return true;
    inbox.from = inbox.to = 0;
    inbox.to = cb_transport_receive(&cb_command_buffer.link, inbox.bytes, sizeof inbox.bytes, false, gone);
    cb_counters.received_bytes += inbox.to;
    return inbox.to != 0;
}

void cb_answers_poll(void)
{
    pthread_mutex_lock(&answers.lock);
    bool mine = !answers.being_read;
    answers.being_read = true;
    pthread_mutex_unlock(&answers.lock);
    if (!mine) return;
    bool ok = true, gone;
    while (ok && inbox_poll(&gone))
        ok = frame_read();
    pthread_mutex_lock(&answers.lock);
    answers.being_read = false;
    pthread_cond_broadcast(&answers.came);
    pthread_mutex_unlock(&answers.lock);
    if (!ok || gone) cb_answers_lost();
}

void cb_notice_register(uint16_t op, cb_notice_taker *take)
{
    takers[op] = take;
}

void cb_answers_after_fork(void)
{
    pthread_mutex_init(&answers.lock, NULL);
    pthread_cond_init(&answers.came, NULL);
    answers.first = NULL;
    answers.being_read = false;
}
