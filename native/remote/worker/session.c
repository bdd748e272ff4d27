#include "remote/worker/session.h"

#include "api/cuda_resolve.h"
#include "remote/wire/box.h"
#include "remote/worker/channel.h"
#include "remote/worker/context.h"
#include "remote/worker/generated.h"
#include "remote/worker/outbox.h"
#include "remote/worker/role.h"
#include "remote/worker/watch.h"

#include <stdio.h>
#include <unistd.h>

#define INBOX_BYTES  (256u << 10)
#define LITTLE_BYTES 64u /* a command before its bulk data */
#define MUCH_BYTES   (64u << 10)

static struct {      /* of the thread that reads commands */
    size_t from, to; /* in the inbox */
    bool little; /* much bulk data came, so more of it is likely: it is to go straight to where it belongs */
    uint8_t inbox[INBOX_BYTES] __attribute__((aligned(64)));
} line;

static bool more(void)
{
    if (!cb_outbox_flush()) return false; /* whoever waits for it must not wait for the next command */
    if (line.from) {
        memmove(line.inbox, line.inbox + line.from, line.to - line.from);
        line.to -= line.from;
        line.from = 0;
    }
    size_t got = cb_channel_receive(line.inbox + line.to, line.little ? LITTLE_BYTES : INBOX_BYTES - line.to);
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

bool cb_answer_part(struct cb_request *q, const void *data, size_t bytes, bool last)
{
    if (last) cb_watch_tell();
    return cb_outbox_put(&q->frame, CB_ANSWER, last ? 0 : CB_FRAME_PART, CUDA_SUCCESS, data, bytes);
}

/* What commands with bulk data have before it: words. */
static size_t words_before_bulk(uint16_t op)
{
    switch (op) {
    case CB_OP_COPY_IN:
        return 4;
    case CB_OP_ARRAY_IN:
        return 5;
    case CB_OP_BOX_IN:
        return CB_BOX_WORDS;
    case CB_OP_TWIN_WRITE:
        return 1;
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

/* The command's words and where it is; false: it is none of ours. */
static bool take_command(struct cb_request *q, const struct cb_served *s)
{
    static __thread uint64_t arguments[CB_COMMAND_MAX / 8]; /* the inbox moves while bulk data is received */
    size_t words = words_before_bulk(q->frame.op) * 8;
    if (!s || q->frame.bytes % 8 || q->frame.bytes > (words ? words + CB_BULK_MAX : CB_COMMAND_MAX))
        return false;
    if (words > q->frame.bytes) return false;
    if (!words) words = q->frame.bytes;
    if (!have(words)) return false;
    memcpy(arguments, line.inbox + line.from, words);
    line.from += words;
    q->at = (const uint8_t *)arguments;
    q->end = q->at + words;
    q->bulk = q->frame.bytes - words;
    line.little = q->bulk >= MUCH_BYTES;
    return true;
}

static bool answer(struct cb_request *q, const struct cb_served *s, CUresult result)
{
    bool ok = true;
    if (s->answered || (q->frame.flags & CB_FRAME_ASKED)) cb_watch_tell();
    if (!q->answered && (s->answered || (q->frame.flags & CB_FRAME_ASKED)))
        ok = cb_outbox_put(&q->frame, CB_ANSWER, 0, result, q->answer,
                           result == CUDA_SUCCESS || q->frame.op == CB_OP_HELLO ? q->given : 0);
    else if (!q->answered && result != CUDA_SUCCESS)
        ok = cb_outbox_put(&q->frame, CB_FAILED, 0, result, NULL, 0);
    return ok && (!q->released || cb_outbox_flush());
}

/* Whether the session goes on. */
static bool serve_one(struct cb_request *q)
{
    const struct cb_served *s = served(q->frame.op);
    q->bad = q->answered = q->released = false;
    q->offer = 0;
    if (!take_command(q, s)) return false;
    cb_role_command(q->frame.thread);
    q->failed = CUDA_SUCCESS;
    q->given = 0;
    if (q->frame.op == CB_OP_cuStreamBeginCapture_v2) cb_watch_capture();
    CUresult result = cb_context_enter(q);
    if (result == CUDA_SUCCESS) result = s->run(q);
    q->released = q->offer && !cb_role_returned(q->offer);
    if (result == CB_MALFORMED || q->bad) {
        fprintf(stderr, "worker: command %u (%s) is malformed\n", q->frame.op, s->name);
        return false;
    }
    while (!q->released && q->bulk) { /* not looked at, for the call was not made */
        static uint8_t waste[4096];
        if (!cb_bulk_receive(q, waste, q->bulk < sizeof waste ? q->bulk : sizeof waste)) return false;
    }
    return answer(q, s, result);
}

/* Until the program is gone; then the process ends, whatever others wait for. */
static void read_commands(struct cb_request *q)
{
    while (have(sizeof q->frame)) {
        memcpy(&q->frame, line.inbox + line.from, sizeof q->frame);
        line.from += sizeof q->frame;
        bool ok = serve_one(q);
        if (ok && !q->released) continue;
        if (ok) return;
        break;
    }
    cb_outbox_flush();
    int code = line.from == line.to ? 0 : 1;
    if (cb_role_others_wait()) _exit(code);
    exit(code);
}

static void *serve(void *nothing)
{
    struct cb_request q = {0};
    do
        read_commands(&q);
    while (cb_role_take(false));
    free(q.answer);
    return nothing;
}

_Noreturn void cb_serve(void)
{
    struct cb_request q = {0};
    cb_role_begin(serve);
    do
        read_commands(&q);
    while (cb_role_take(true));
    exit(1); /* not reached */
}
