#include "remote/worker/session.h"

#include "api/cuda_resolve.h"
#include "remote/wire/box.h"
#include "remote/worker/channel.h"
#include "remote/worker/context.h"
#include "remote/worker/generated.h"
#include "remote/worker/outbox.h"
#include "remote/worker/reader_role.h"
#include "remote/worker/watch.h"

#include <stdio.h>
#include <unistd.h>

#define INBOX_BYTES  (256u << 10)
#define LITTLE_BYTES 64u /* a command before its bulk data */
#define MUCH_BYTES   (64u << 10)

static struct {      /* of the thread that reads commands */
    size_t from, to; /* in the inbox */
    /* much bulk data came, so more is likely: it is to be received directly into its destination */
    bool little;
    uint8_t inbox[INBOX_BYTES] __attribute__((aligned(64)));
} line;

static bool inbox_receive(void)
{
    if (!cb_outbox_flush())
        return false; /* the program may wait for these answers before it sends the next command */
    if (line.from) {
        memmove(line.inbox, line.inbox + line.from, line.to - line.from);
        line.to -= line.from;
        line.from = 0;
    }
    size_t got = cb_channel_receive(line.inbox + line.to, line.little ? LITTLE_BYTES : INBOX_BYTES - line.to);
    line.to += got;
    return got != 0;
}

static bool inbox_ensure(size_t bytes)
{
    while (line.to - line.from < bytes) {
        if (!inbox_receive()) return false;
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
    if (last) cb_watch_report();
    return cb_outbox_put(&q->frame, CB_ANSWER, last ? 0 : CB_FRAME_PART, CUDA_SUCCESS, data, bytes);
}

/* Number of words that precede bulk data in a command. */
static size_t bulk_offset_words(uint16_t op)
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

static const struct cb_served *handler_of(uint16_t op)
{
#define OWN(name, answered) [CB_OP_##name] = {cb_on_##name, #name, answered},
    static const struct cb_served own[CB_OP_COUNT] = {CB_OWN_HANDLERS(OWN)};
#undef OWN
    if (op >= CB_OP_COUNT) return NULL;
    return own[op].run ? &own[op] : cb_served[op].run ? &cb_served[op] : NULL;
}

/* Take the command's words and locate its bulk data; return false if it is malformed. */
static bool command_take(struct cb_request *q, const struct cb_served *s)
{
    static __thread uint64_t arguments[CB_COMMAND_MAX / 8]; /* the inbox moves while bulk data is received */
    size_t words = bulk_offset_words(q->frame.op) * 8;
    if (!s || q->frame.bytes % 8 || q->frame.bytes > (words ? words + CB_BULK_MAX : CB_COMMAND_MAX))
        return false;
    if (words > q->frame.bytes) return false;
    if (!words) words = q->frame.bytes;
    if (!inbox_ensure(words)) return false;
    memcpy(arguments, line.inbox + line.from, words);
    line.from += words;
    q->at = (const uint8_t *)arguments;
    q->end = q->at + words;
    q->bulk = q->frame.bytes - words;
    line.little = q->bulk >= MUCH_BYTES;
    return true;
}

static bool answer_send(struct cb_request *q, const struct cb_served *s, CUresult result)
{
    bool ok = true;
    if (s->answered || (q->frame.flags & CB_FRAME_ASKED)) cb_watch_report();
    if (!q->answered && (s->answered || (q->frame.flags & CB_FRAME_ASKED)))
        ok = cb_outbox_put(&q->frame, CB_ANSWER, 0, result, q->answer,
                           result == CUDA_SUCCESS || q->frame.op == CB_OP_HELLO ? q->given : 0);
    else if (!q->answered && result != CUDA_SUCCESS)
        ok = cb_outbox_put(&q->frame, CB_FAILED, 0, result, NULL, 0);
    return ok && (!q->released || cb_outbox_flush());
}

/* Execute one command; return true if the session goes on. */
static bool command_serve(struct cb_request *q)
{
    const struct cb_served *s = handler_of(q->frame.op);
    q->bad = q->answered = q->released = false;
    q->offer = 0;
    if (!command_take(q, s)) return false;
    cb_reader_role_command(q->frame.thread);
    q->failed = CUDA_SUCCESS;
    q->given = 0;
    if (q->frame.op == CB_OP_cuStreamBeginCapture_v2) cb_watch_capture();
    CUresult result = cb_context_enter(q);
    if (result == CUDA_SUCCESS) result = s->run(q);
    q->released = q->offer && !cb_reader_role_returned(q->offer);
    if (result == CB_MALFORMED || q->bad) {
        fprintf(stderr, "worker: command %u (%s) is malformed\n", q->frame.op, s->name);
        return false;
    }
    while (!q->released && q->bulk) { /* read and dropped, because the call was not made */
        static uint8_t waste[4096];
        if (!cb_bulk_receive(q, waste, q->bulk < sizeof waste ? q->bulk : sizeof waste)) return false;
    }
    return answer_send(q, s, result);
}

/* Serve until the program has ended; then the process ends, even if other threads wait. */
static void commands_read(struct cb_request *q)
{
    while (inbox_ensure(sizeof q->frame)) {
        memcpy(&q->frame, line.inbox + line.from, sizeof q->frame);
        line.from += sizeof q->frame;
        bool ok = command_serve(q);
        if (ok && !q->released) continue;
        if (ok) return;
        break;
    }
    cb_outbox_flush();
    int code = line.from == line.to ? 0 : 1;
    if (cb_reader_role_others_wait()) _exit(code);
    exit(code);
}

static void *reader_run(void *nothing)
{
    struct cb_request q = {0};
    do
        commands_read(&q);
    while (cb_reader_role_take(false));
    free(q.answer);
    return nothing;
}

_Noreturn void cb_serve(void)
{
    struct cb_request q = {0};
    cb_reader_role_begin(reader_run);
    do
        commands_read(&q);
    while (cb_reader_role_take(true));
    exit(1); /* not reached */
}
