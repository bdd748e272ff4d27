#include "remote/worker/session.h"

#include "api/cuda_resolve.h"
#include "remote/worker/channel.h"
#include "remote/worker/context.h"
#include "remote/worker/generated.h"

#include <stdio.h>

#define INBOX_BYTES  (256u << 10)
#define OUTBOX_BYTES (64u << 10)

static struct {
    size_t from, to; /* in the inbox */
    size_t filled;   /* of the outbox */
    uint8_t inbox[INBOX_BYTES] __attribute__((aligned(64)));
    uint8_t outbox[OUTBOX_BYTES];
} line;

static bool flush(void)
{
    if (line.filled && !cb_channel_send(line.outbox, line.filled)) return false;
    line.filled = 0;
    return true;
}

static bool more(void)
{
    if (line.filled && !flush()) return false; /* whoever waits for it must not wait for the next command */
    if (line.from) {
        memmove(line.inbox, line.inbox + line.from, line.to - line.from);
        line.to -= line.from;
        line.from = 0;
    }
    size_t got = cb_channel_receive(line.inbox + line.to, INBOX_BYTES - line.to);
    line.to += got;
    return got != 0;
}

static bool have(size_t bytes)
{
    while (line.to - line.from < bytes) {
        if (!more()) return false;
    }
    return true;
}

bool cb_bulk_receive(struct cb_request *q, void *into, size_t bytes)
{
    uint8_t *at = into;
    if (bytes > q->bulk) return false;
    q->bulk -= bytes;
    size_t ready = line.to - line.from;
    if (ready > bytes) ready = bytes;
    memcpy(at, line.inbox + line.from, ready);
    line.from += ready;
    for (size_t done = ready; done < bytes;) {
        size_t got = cb_channel_receive(at + done, bytes - done);
        if (!got) return false;
        done += got;
    }
    return true;
}

static bool put(const void *data, size_t bytes)
{
    if (OUTBOX_BYTES - line.filled < bytes && !flush()) return false;
    memcpy(line.outbox + line.filled, data, bytes);
    line.filled += bytes;
    return true;
}

static bool put_answer(const struct cb_frame *of, uint16_t op, uint16_t flags, CUresult result,
                       const void *data, size_t bytes)
{
    struct cb_frame f = {
        .op = op, .context = of->context, .seq = of->seq, .flags = flags, .bytes = (uint32_t)(8 + bytes)};
    uint64_t word = (uint64_t)result;
    if (!put(&f, sizeof f) || !put(&word, sizeof word)) return false;
    if (bytes <= OUTBOX_BYTES / 2) return put(data, bytes);
    struct iovec parts[2] = {{line.outbox, line.filled}, {(void *)data, bytes}};
    line.filled = 0;
    return cb_channel_send_parts(parts, 2);
}

bool cb_answer_part(struct cb_request *q, const void *data, size_t bytes, bool last)
{
    return put_answer(&q->frame, CB_ANSWER, last ? 0 : CB_FRAME_PART, CUDA_SUCCESS, data, bytes);
}

/* What commands with bulk data have before it: words. */
static size_t words_before_bulk(uint16_t op)
{
    switch (op) {
    case CB_OP_COPY_IN:
        return 5;
    case CB_OP_IMAGE:
        return 3;
    default:
        return 0;
    }
}

static const struct cb_served *served(uint16_t op)
{
#define OWN(name, answered) [CB_OP_##name] = {cb_on_##name, #name, answered},
    static const struct cb_served own[CB_OP_COUNT] = {CB_OWN_HANDLERS(OWN)};
#undef OWN
    if (op >= CB_OP_COUNT) return NULL;
    return own[op].run ? &own[op] : cb_served[op].run ? &cb_served[op] : NULL;
}

/* Whether the session goes on. */
static bool serve_one(struct cb_request *q)
{
    size_t words = words_before_bulk(q->frame.op) * 8;
    const struct cb_served *s = served(q->frame.op);
    if (!s || q->frame.bytes % 8 || q->frame.bytes > (words ? words + CB_BULK_MAX : CB_COMMAND_MAX))
        return false;
    if (words > q->frame.bytes) return false;
    if (!words) words = q->frame.bytes;
    if (!have(words)) return false;
    static uint64_t arguments[CB_COMMAND_MAX / 8]; /* the inbox moves while bulk data is received */
    memcpy(arguments, line.inbox + line.from, words);
    line.from += words;
    q->at = (const uint8_t *)arguments;
    q->end = q->at + words;
    q->bulk = q->frame.bytes - words;
    q->bad = false;
    q->failed = CUDA_SUCCESS;
    q->given = 0;
    CUresult result = cb_context_enter(q);
    if (result == CUDA_SUCCESS) result = s->run(q);
    if (result == CB_MALFORMED || q->bad) {
        fprintf(stderr, "worker: command %u (%s) is malformed\n", q->frame.op, s->name);
        return false;
    }
    while (q->bulk) { /* not looked at, for the call was not made */
        static uint8_t waste[4096];
        if (!cb_bulk_receive(q, waste, q->bulk < sizeof waste ? q->bulk : sizeof waste)) return false;
    }
    bool answered = s->answered || (q->frame.flags & CB_FRAME_ASKED);
    if (q->answered) return true;
    if (answered)
        return put_answer(&q->frame, CB_ANSWER, 0, result, q->answer,
                          result == CUDA_SUCCESS || q->frame.op == CB_OP_HELLO ? q->given : 0);
    return result == CUDA_SUCCESS || put_answer(&q->frame, CB_FAILED, 0, result, NULL, 0);
}

int cb_serve(void)
{
    struct cb_request q = {0};
    while (have(sizeof q.frame)) {
        memcpy(&q.frame, line.inbox + line.from, sizeof q.frame);
        line.from += sizeof q.frame;
        q.answered = false;
        if (!serve_one(&q)) break;
    }
    bool left = line.from == line.to;
    flush();
    free(q.answer);
    return left ? 0 : 1;
}
