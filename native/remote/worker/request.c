#include "remote/worker/request.h"

#include "remote/worker/reader_role.h"

const void *cb_take_block(struct cb_request *q, size_t bytes)
{
    size_t words = CB_WORDS(bytes);
    if (bytes > (size_t)(q->end - q->at) || words > (size_t)(q->end - q->at)) {
        q->bad = true;
        return NULL;
    }
    const void *block = q->at;
    q->at += words;
    return block;
}

void cb_take_bytes(struct cb_request *q, void *into, size_t bytes)
{
    const void *block = cb_take_block(q, bytes);
    if (block)
        memcpy(into, block, bytes);
    else
        memset(into, 0, bytes);
}

uint64_t cb_take_word(struct cb_request *q)
{
    uint64_t v;
    cb_take_bytes(q, &v, sizeof v);
    return v;
}

const char *cb_take_string(struct cb_request *q)
{
    static __thread char text[CB_STRING_MAX];
    uint64_t length = cb_take_word(q);
    text[0] = 0;
    if (length >= sizeof text)
        q->bad = true;
    else
        cb_take_bytes(q, text, length);
    text[length < sizeof text ? length : 0] = 0;
    return text;
}

void *cb_scratch(struct cb_request *q, uint64_t count, size_t bytes)
{
    static __thread uint8_t capacity[4][CB_COMMAND_MAX] __attribute__((aligned(64)));
    static __thread uint32_t last, seq;
    if (seq != q->frame.seq) last = 0;
    seq = q->frame.seq;
    if (count > CB_COMMAND_MAX / 8 || count * bytes > CB_COMMAND_MAX || last == 4) {
        q->bad = true;
        return capacity[0];
    }
    return capacity[last++];
}

bool cb_taken(const struct cb_request *q)
{
    return !q->bad && q->at == q->end;
}

void cb_give_bytes(struct cb_request *q, const void *data, size_t bytes)
{
    size_t words = CB_WORDS(bytes);
    if (q->capacity - q->given < words) {
        size_t capacity = 2 * (q->capacity + words);
        uint8_t *more = realloc(q->answer, capacity);
        if (!more) abort(); /* the session ends; no other program is served by this process */
        q->answer = more;
        q->capacity = capacity;
    }
    if (words) memset(q->answer + q->given + words - 8, 0, 8);
    memcpy(q->answer + q->given, data, bytes);
    q->given += words;
}

void cb_give_word(struct cb_request *q, uint64_t v)
{
    cb_give_bytes(q, &v, sizeof v);
}

void cb_give_string(struct cb_request *q, const char *text)
{
    size_t length = strlen(text);
    cb_give_word(q, length);
    cb_give_bytes(q, text, length + 1);
}

void cb_release(struct cb_request *q)
{
    if (!q->offer && !q->bulk) q->offer = cb_reader_role_offer();
}
