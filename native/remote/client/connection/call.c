#include "remote/client/connection/call.h"

#include "remote/client/api/object_table.h"
#include "remote/client/connection/sender.h"
#include "remote/client/context/context_stack.h"
#include "remote/client/stream/stream_use.h"

void (*cb_before_command)(enum cb_op op);
void (*cb_after_wait)(enum cb_op op);
__thread uint32_t cb_asked_seq;

#define KNOWN_MAX (1u << 30) /* commands */

bool cb_session_ready(void)
{
    return cb_command_buffer.state == CB_OPEN;
}

CUresult cb_call_begin_as(struct cb_call *c, enum cb_op op, uint16_t context)
{
    pthread_mutex_lock(&cb_command_buffer.lock);
    if (COMMAND_BUFFER_BYTES - cb_command_buffer.filled < sizeof(struct cb_frame) + CB_COMMAND_MAX)
        cb_command_buffer_flush();
    if (cb_command_buffer.gone) {
        pthread_mutex_unlock(&cb_command_buffer.lock);
        cb_answers_lost(); /* the loss may have been found while no thread waited */
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    c->frame = cb_command_buffer.bytes + cb_command_buffer.filled;
    c->at = c->frame + sizeof(struct cb_frame);
    c->end = c->at + CB_COMMAND_MAX;
    c->failed = CUDA_SUCCESS;
    c->taken = 0;
    c->answer.seq = ++cb_command_buffer.seq;
    if (c->answer.seq % KNOWN_MAX == 0)
        cb_progress_invalidate(); /* numbers that are compared are close to each other */
    struct cb_frame f = {
        .op = (uint16_t)op, .context = context, .seq = c->answer.seq, .thread = cb_thread_number()};
    memcpy(c->frame, &f, sizeof f);
    return CUDA_SUCCESS;
}

CUresult cb_call_begin(struct cb_call *c, enum cb_op op, enum cb_where where)
{
    if (!cb_session_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    uint16_t context = cb_context_number();
    if (where != CB_ANYWHERE && !context && cb_stack.depth) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (where == CB_IN_CONTEXT && !context) return CUDA_ERROR_INVALID_CONTEXT;
    if (cb_before_command) cb_before_command(op);
    return cb_call_begin_as(c, op, context);
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

/* Error for a handle that is not an object of that kind. */
static CUresult invalid_handle_error(enum cb_kind kind)
{
    switch (kind) {
    case CB_KIND_CONTEXT:
        return CUDA_ERROR_INVALID_CONTEXT;
    case CB_KIND_GRAPH:
    case CB_KIND_NODE:
    case CB_KIND_EXEC:
    case CB_KIND_USER:
        return CUDA_ERROR_INVALID_VALUE;
    default:
        return CUDA_ERROR_INVALID_HANDLE;
    }
}

static enum cb_op call_op(const struct cb_call *c)
{
    uint16_t op;
    memcpy(&op, c->frame + offsetof(struct cb_frame, op), sizeof op);
    return (enum cb_op)op;
}

void cb_put_handle(struct cb_call *c, enum cb_kind kind, uint64_t handle)
{
    bool is_default = kind == CB_KIND_STREAM && handle <= 2;
    if (kind == CB_KIND_STREAM) cb_stream_use_note(call_op(c), handle, c->answer.seq);
    if (kind == CB_KIND_EVENT) cb_event_use_note(call_op(c), handle);
    if (kind == CB_KIND_FUNCTION && cb_object_is(handle, CB_KIND_KERNEL))
        kind = CB_KIND_KERNEL; /* a function may be used as a kernel */
    if (!is_default && !cb_object_alive(handle, kind)) c->failed = invalid_handle_error(kind);
    cb_put_word(c, is_default && !handle && cb_per_thread ? 2 : handle);
}

uint64_t cb_new_object(struct cb_call *c, enum cb_kind kind)
{
    uint64_t id = cb_object_new(kind);
    if (!id) c->failed = CUDA_ERROR_OUT_OF_MEMORY;
    return id;
}

/* Append the call to the command buffer, with `bytes` of data behind it. */
static CUresult call_append(struct cb_call *c, const void *data, size_t bytes)
{
    if (c->failed != CUDA_SUCCESS) {
        CUresult failed = c->failed;
        cb_command_buffer.seq--;
        pthread_mutex_unlock(&cb_command_buffer.lock);
        return failed;
    }
    size_t words = CB_WORDS(bytes), whole = (size_t)(c->at - c->frame);
    uint32_t payload = (uint32_t)(whole - sizeof(struct cb_frame) + words);
    memcpy(c->frame + offsetof(struct cb_frame, bytes), &payload, sizeof payload);
    cb_command_buffer.filled += whole;
    cb_counters.commands++;
    if (!bytes) return CUDA_SUCCESS;
    if (words <= COMMAND_BUFFER_BYTES - cb_command_buffer.filled && words <= 4096) {
        memset(cb_command_buffer.bytes + cb_command_buffer.filled + words - 8, 0, 8);
        memcpy(cb_command_buffer.bytes + cb_command_buffer.filled, data, bytes);
        cb_command_buffer.filled += words;
        return CUDA_SUCCESS;
    }
    static const uint64_t zero;
    struct iovec parts[3] = {{cb_command_buffer.bytes, cb_command_buffer.filled},
                             {(void *)data, bytes},
                             {(void *)&zero, words - bytes}};
    cb_counters.sent_bytes += cb_command_buffer.filled + words;
    cb_command_buffer.filled = 0;
    cb_command_buffer.gone = cb_command_buffer.gone || !cb_transport_send(&cb_command_buffer.link, parts, 3);
    return CUDA_SUCCESS;
}

CUresult cb_call_send_with(struct cb_call *c, const void *data, size_t bytes)
{
    CB_OK(call_append(c, data, bytes));
    pthread_mutex_unlock(&cb_command_buffer.lock);
    cb_sender_wake();
    return CUDA_SUCCESS;
}

CUresult cb_call_send(struct cb_call *c)
{
    return cb_call_send_with(c, NULL, 0);
}

CUresult cb_call_send_now(struct cb_call *c)
{
    CB_OK(call_append(c, NULL, 0));
    bool alive = cb_command_buffer_flush();
    pthread_mutex_unlock(&cb_command_buffer.lock);
    if (!alive) cb_answers_lost();
    return CUDA_SUCCESS;
}

/*
 * Return true if events and streams may not be as recorded: after the end of a context, and after a failure
 * that lasts.
 */
static bool invalidates_progress(enum cb_op op, CUresult result)
{
    return op == CB_OP_CONTEXT_RESET || op == CB_OP_CONTEXT_DESTROY ||
           (result >= CUDA_ERROR_ILLEGAL_ADDRESS && result <= CUDA_ERROR_LAUNCH_FAILED);
}

static CUresult call_exchange(struct cb_call *c, const void *data, size_t bytes, void *bulk,
                              size_t bulk_bytes)
{
    struct cb_answer *a = &c->answer;
    uint16_t asked = CB_FRAME_ASKED;
    enum cb_op op = call_op(c);
    memcpy(c->frame + offsetof(struct cb_frame, flags), &asked, sizeof asked);
    a->bulk = bulk;
    a->bulk_left = bulk_bytes;
    a->got = a->small;
    a->got_bytes = 0;
    a->done = false;
    if (c->failed == CUDA_SUCCESS) cb_answer_expect(a);
    CB_OK(call_append(c, data, bytes));
    cb_counters.questions++;
    bool alive = cb_command_buffer_flush();
    pthread_mutex_unlock(&cb_command_buffer.lock);
    if (!alive) cb_answers_lost();
    CUresult result = cb_answer_await(a);
    if (result == CUDA_SUCCESS && cb_after_wait) cb_after_wait(op);
    if (invalidates_progress(op, result)) cb_progress_invalidate();
    cb_asked_seq = a->seq; /* operations after a wait count as waited for */
    return result;
}

CUresult cb_call_exchange(struct cb_call *c, const void *data, size_t bytes, void *bulk, size_t bulk_bytes)
{
    CUresult result = call_exchange(c, data, bytes, bulk, bulk_bytes);
    CUresult earlier = cb_context_take_failure();
    return earlier != CUDA_SUCCESS ? earlier : result;
}

CUresult cb_call_question(struct cb_call *c)
{
    return call_exchange(c, NULL, 0, NULL, 0);
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
    if (c->answer.got_bytes - c->taken < words) {
        memset(into, 0, bytes);
        c->taken = c->answer.got_bytes;
        return;
    }
    memcpy(into, c->answer.got + c->taken, bytes);
    c->taken += words;
}

const char *cb_take_string(struct cb_call *c)
{
    uint64_t length = cb_take_word(c);
    const char *text = (const char *)c->answer.got + c->taken;
    if (length >= c->answer.got_bytes - c->taken || text[length])
        return NULL; /* the terminating zero travels as well */
    c->taken += CB_WORDS(length + 1);
    return text;
}

const uint8_t *cb_take_block(struct cb_call *c, size_t bytes)
{
    const uint8_t *block = c->answer.got + c->taken;
    if (bytes > c->answer.got_bytes - c->taken || CB_WORDS(bytes) > c->answer.got_bytes - c->taken)
        return NULL;
    c->taken += CB_WORDS(bytes);
    return block;
}

bool cb_took_all(const struct cb_call *c)
{
    return c->taken == c->answer.got_bytes;
}

void cb_call_end(struct cb_call *c)
{
    if (c->answer.got != c->answer.small) free(c->answer.got);
    c->answer.got = c->answer.small;
    c->answer.got_bytes = 0;
}
