#include "remote/client/session.h"

#include "remote/client/context.h"
#include "remote/client/line.h"
#include "remote/client/object.h"
#include "remote/client/snapshot.h"

#include <stdio.h>
#include <unistd.h>

struct line cb_line = {.lock = PTHREAD_MUTEX_INITIALIZER, .link = {-1}};
struct cb_counters cb_counters;

static enum { CLOSED, OPEN, FORKED } state;

/* ---- answers ---- */

static struct answers {
    pthread_mutex_t lock;
    pthread_cond_t came;
    struct cb_call *first, **last; /* who waits, in the order of the questions */
    bool being_read;
} answers = {.lock = PTHREAD_MUTEX_INITIALIZER, .came = PTHREAD_COND_INITIALIZER, .last = &answers.first};

static struct { /* bytes that came and are not yet looked at; by whoever reads */
    uint8_t bytes[64 << 10];
    size_t from, to;
} inbox;

static bool fill(void)
{
    bool gone = false;
    inbox.from = inbox.to = 0;
    inbox.to = cb_link_receive(&cb_line.link, inbox.bytes, sizeof inbox.bytes, true, &gone);
    cb_counters.received_bytes += inbox.to;
    return inbox.to != 0;
}

static bool receive(void *into, size_t bytes)
{
    uint8_t *at = into;
    while (bytes) {
        size_t ready = inbox.to - inbox.from;
        if (!ready && bytes >= sizeof inbox.bytes) { /* much: straight to where it belongs */
            bool gone = false;
            size_t got = cb_link_receive(&cb_line.link, at, bytes, true, &gone);
            if (!got) return false;
            cb_counters.received_bytes += got;
            at += got;
            bytes -= got;
            continue;
        }
        if (!ready && !fill()) return false;
        ready = inbox.to - inbox.from;
        if (ready > bytes) ready = bytes;
        memcpy(at, inbox.bytes + inbox.from, ready);
        inbox.from += ready;
        at += ready;
        bytes -= ready;
    }
    return true;
}

/* The answer of the one whose turn it is. */
static bool take_answer(const struct cb_frame *f, struct cb_call *c)
{
    uint64_t result;
    if (!c || c->seq != f->seq || f->bytes < sizeof result || !receive(&result, sizeof result)) return false;
    size_t rest = f->bytes - sizeof result;
    if (c->bulk_left && result == CUDA_SUCCESS) {
        if (rest > c->bulk_left || !receive(c->bulk, rest)) return false;
        c->bulk += rest;
        c->bulk_left -= rest;
        if (f->flags & CB_FRAME_PART) return true;
        rest = 0;
        if (c->bulk_left) return false;
    }
    if (rest > CB_ANSWER_MAX) return false;
    c->got = rest <= sizeof c->small ? c->small : malloc(rest);
    if (!c->got || !receive(c->got, rest)) return false;
    c->got_bytes = rest;
    c->result = (CUresult)result;
    pthread_mutex_lock(&answers.lock);
    answers.first = c->next;
    if (!answers.first) answers.last = &answers.first;
    c->done = true;
    pthread_mutex_unlock(&answers.lock);
    return true;
}

static bool read_frame(void)
{
    struct cb_frame f;
    uint64_t result;
    if (!receive(&f, sizeof f)) return false;
    switch (f.op) {
    case CB_ANSWER:
        pthread_mutex_lock(&answers.lock);
        struct cb_call *c = answers.first;
        pthread_mutex_unlock(&answers.lock);
        return take_answer(&f, c);
    case CB_FAILED:
        if (f.bytes != sizeof result || !receive(&result, sizeof result)) return false;
        cb_context_failed(f.context, (CUresult)result);
        return true;
    default:
        return false;
    }
}

static void everybody_is_told(void)
{
    pthread_mutex_lock(&answers.lock);
    for (struct cb_call *c = answers.first; c; c = c->next) {
        c->result = CUDA_ERROR_DEVICE_UNAVAILABLE;
        c->got_bytes = 0;
        c->done = true;
    }
    answers.first = NULL;
    answers.last = &answers.first;
    pthread_cond_broadcast(&answers.came);
    pthread_mutex_unlock(&answers.lock);
}

static void lost(void)
{
    pthread_mutex_lock(&cb_line.lock);
    if (!cb_line.gone) fprintf(stderr, "calabash: the connection to the GPU is lost\n");
    cb_line.gone = true;
    pthread_mutex_unlock(&cb_line.lock);
    everybody_is_told();
}

static CUresult await(struct cb_call *c)
{
    pthread_mutex_lock(&answers.lock);
    while (!c->done) {
        if (answers.being_read) {
            pthread_cond_wait(&answers.came, &answers.lock);
            continue;
        }
        answers.being_read = true;
        bool ok = true;
        while (ok && !c->done) {
            pthread_mutex_unlock(&answers.lock);
            ok = read_frame();
            pthread_mutex_lock(&answers.lock);
        }
        answers.being_read = false;
        pthread_cond_broadcast(&answers.came);
        if (!ok) {
            pthread_mutex_unlock(&answers.lock);
            lost();
            pthread_mutex_lock(&answers.lock);
        }
    }
    pthread_mutex_unlock(&answers.lock);
    return c->result;
}

/* ---- commands ---- */

bool cb_line_flush(void)
{
    if (cb_line.gone) return false;
    if (!cb_line.filled) return true;
    struct iovec part = {cb_line.bytes, cb_line.filled};
    cb_counters.sent_bytes += cb_line.filled;
    cb_line.filled = 0;
    cb_line.gone = !cb_link_send(&cb_line.link, &part, 1);
    return !cb_line.gone;
}

bool cb_session_ready(void)
{
    return state == OPEN;
}

static CUresult begin(struct cb_call *c, enum cb_op op, uint16_t context)
{
    pthread_mutex_lock(&cb_line.lock);
    if (LINE_BYTES - cb_line.filled < sizeof(struct cb_frame) + CB_COMMAND_MAX) cb_line_flush();
    if (cb_line.gone) {
        pthread_mutex_unlock(&cb_line.lock);
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    c->frame = cb_line.bytes + cb_line.filled;
    c->at = c->frame + sizeof(struct cb_frame);
    c->end = c->at + CB_COMMAND_MAX;
    c->failed = CUDA_SUCCESS;
    c->seq = ++cb_line.seq;
    c->got = NULL;
    c->got_bytes = c->taken = 0;
    c->bulk = NULL;
    c->bulk_left = 0;
    c->done = false;
    struct cb_frame f = {.op = (uint16_t)op, .context = context, .seq = c->seq, .thread = cb_thread_number()};
    memcpy(c->frame, &f, sizeof f);
    return CUDA_SUCCESS;
}

CUresult cb_call_begin(struct cb_call *c, enum cb_op op, enum cb_where where)
{
    if (state != OPEN) return CUDA_ERROR_NOT_INITIALIZED;
    uint16_t context = cb_context_number();
    if (where == CB_IN_CONTEXT && !context) return CUDA_ERROR_INVALID_CONTEXT;
    return begin(c, op, context);
}

void cb_put_word(struct cb_call *c, uint64_t v)
{
    if (c->end - c->at < 8) {
        c->failed = CUDA_ERROR_INVALID_VALUE;
        return;
    }
    memcpy(c->at, &v, 8);
    c->at += 8;
}

void cb_put_bytes(struct cb_call *c, const void *data, size_t bytes)
{
    size_t words = CB_WORDS(bytes);
    if ((size_t)(c->end - c->at) < words) {
        c->failed = CUDA_ERROR_INVALID_VALUE;
        return;
    }
    if (words) memset(c->at + words - 8, 0, 8);
    memcpy(c->at, data, bytes);
    c->at += words;
}

void cb_put_string(struct cb_call *c, const char *text)
{
    size_t length = text ? strnlen(text, CB_STRING_MAX) : CB_STRING_MAX;
    if (length == CB_STRING_MAX) {
        c->failed = CUDA_ERROR_INVALID_VALUE;
        return;
    }
    cb_put_word(c, length);
    cb_put_bytes(c, text, length);
}

void cb_put_handle(struct cb_call *c, enum cb_kind kind, uint64_t handle)
{
    bool is_default = kind == CB_KIND_STREAM && handle <= 2;
    if (!is_default && !cb_object_alive(handle, kind))
        c->failed = kind == CB_KIND_CONTEXT ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
    cb_put_word(c, is_default && !handle && cb_per_thread ? 2 : handle);
}

void cb_call_cancel(struct cb_call *c)
{
    (void)c;
    cb_line.seq--;
    pthread_mutex_unlock(&cb_line.lock);
}

/* It takes its place in the line, with `bytes` of data behind it. */
static CUresult commit(struct cb_call *c, const void *data, size_t bytes)
{
    if (c->failed != CUDA_SUCCESS) {
        CUresult failed = c->failed;
        cb_call_cancel(c);
        return failed;
    }
    size_t words = CB_WORDS(bytes), whole = (size_t)(c->at - c->frame);
    uint32_t payload = (uint32_t)(whole - sizeof(struct cb_frame) + words);
    memcpy(c->frame + offsetof(struct cb_frame, bytes), &payload, sizeof payload);
    cb_line.filled += whole;
    cb_counters.commands++;
    if (!bytes) return CUDA_SUCCESS;
    if (words <= LINE_BYTES - cb_line.filled && words <= 4096) {
        memset(cb_line.bytes + cb_line.filled + words - 8, 0, 8);
        memcpy(cb_line.bytes + cb_line.filled, data, bytes);
        cb_line.filled += words;
        return CUDA_SUCCESS;
    }
    static const uint64_t zero;
    struct iovec parts[3] = {
        {cb_line.bytes, cb_line.filled}, {(void *)data, bytes}, {(void *)&zero, words - bytes}};
    cb_counters.sent_bytes += cb_line.filled + words;
    cb_line.filled = 0;
    cb_line.gone = cb_line.gone || !cb_link_send(&cb_line.link, parts, 3);
    return CUDA_SUCCESS;
}

CUresult cb_call_send_with(struct cb_call *c, const void *data, size_t bytes)
{
    CB_OK(commit(c, data, bytes));
    pthread_mutex_unlock(&cb_line.lock);
    cb_sender_wake();
    return CUDA_SUCCESS;
}

CUresult cb_call_send(struct cb_call *c)
{
    return cb_call_send_with(c, NULL, 0);
}

static CUresult exchange(struct cb_call *c, const void *data, size_t bytes, void *bulk, size_t bulk_bytes)
{
    uint16_t asked = CB_FRAME_ASKED;
    memcpy(c->frame + offsetof(struct cb_frame, flags), &asked, sizeof asked);
    c->bulk = bulk;
    c->bulk_left = bulk_bytes;
    c->next = NULL;
    CB_OK(commit(c, data, bytes));
    cb_counters.questions++;
    pthread_mutex_lock(&answers.lock);
    *answers.last = c;
    answers.last = &c->next;
    pthread_mutex_unlock(&answers.lock);
    bool alive = cb_line_flush();
    pthread_mutex_unlock(&cb_line.lock);
    if (!alive) lost();
    return await(c);
}

CUresult cb_call_exchange(struct cb_call *c, const void *data, size_t bytes, void *bulk, size_t bulk_bytes)
{
    CUresult result = exchange(c, data, bytes, bulk, bulk_bytes);
    CUresult earlier = cb_context_take_failure();
    return earlier != CUDA_SUCCESS ? earlier : result;
}

CUresult cb_call_ask(struct cb_call *c)
{
    return cb_call_exchange(c, NULL, 0, NULL, 0);
}

uint64_t cb_take_word(struct cb_call *c)
{
    uint64_t v = 0;
    cb_take_bytes(c, &v, sizeof v);
    return v;
}

void cb_take_bytes(struct cb_call *c, void *into, size_t bytes)
{
    size_t words = CB_WORDS(bytes);
    if (c->got_bytes - c->taken < words) {
        memset(into, 0, bytes);
        c->taken = c->got_bytes;
        return;
    }
    memcpy(into, c->got + c->taken, bytes);
    c->taken += words;
}

const char *cb_take_string(struct cb_call *c)
{
    uint64_t length = cb_take_word(c);
    const char *text = (const char *)c->got + c->taken;
    if (length >= c->got_bytes - c->taken || text[length])
        return NULL; /* the zero behind it travels as well */
    c->taken += CB_WORDS(length + 1);
    return text;
}

void cb_call_end(struct cb_call *c)
{
    if (c->got != c->small) free(c->got);
    c->got = NULL;
}

/* ---- beginning and end ---- */

static void in_child(void)
{
    if (state != OPEN) return;
    state = FORKED; /* the connection is the parent's */
    cb_link_close(&cb_line.link);
    pthread_mutex_init(&cb_line.lock, NULL);
    pthread_mutex_init(&answers.lock, NULL);
    cb_sender_forget();
}

static void at_end(void)
{
    if (state != OPEN) return;
    pthread_mutex_lock(&cb_line.lock);
    cb_line_flush();
    pthread_mutex_unlock(&cb_line.lock);
}

static CUresult hello(void)
{
    struct cb_call c;
    CB_OK(begin(&c, CB_OP_HELLO, 0));
    cb_put_word(&c, CB_WIRE_MAGIC);
    cb_put_word(&c, CB_WIRE_VERSION);
    cb_put_word(&c, CB_OPS_SUM);
    CUresult result = exchange(&c, NULL, 0, NULL, 0);
    if (result == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
        fprintf(
            stderr,
            "calabash: this client (protocol %u, table %016llx) and the server (protocol %llu, table %016llx)"
            " do not know each other\nhint: install the same version on both\n",
            CB_WIRE_VERSION, CB_OPS_SUM, (unsigned long long)cb_take_word(&c),
            (unsigned long long)cb_take_word(&c));
    if (result == CUDA_SUCCESS && !cb_snapshot_take(&c)) result = CUDA_ERROR_UNKNOWN;
    cb_call_end(&c);
    return result;
}

bool cb_session_open(void)
{
    static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
    static bool prepared;
    char why[256];
    const char *where = getenv("CALABASH_REMOTE");
    pthread_mutex_lock(&opening);
    bool ok = state == OPEN;
    if (!ok && state == CLOSED && where) {
        ok = cb_link_open(&cb_line.link, where, why, sizeof why);
        if (!ok) fprintf(stderr, "calabash: %s\n", why);
        cb_line.gone = !ok;
        ok = ok && hello() == CUDA_SUCCESS && cb_sender_start();
        if (ok && !prepared) {
            prepared = pthread_atfork(NULL, NULL, in_child) == 0;
            atexit(at_end);
        }
        if (!ok) cb_link_close(&cb_line.link);
        if (ok) state = OPEN;
    }
    pthread_mutex_unlock(&opening);
    return ok;
}
