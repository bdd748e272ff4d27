#include "remote/client/connection/session.h"

#include "remote/client/connection/listener.h"
#include "remote/client/connection/sender.h"
#include "remote/client/device/device_snapshot.h"
#include "remote/client/launch/kernel_output.h"
#include "remote/wire/environment.h"

#include <stdio.h>
#include <unistd.h>

enum cb_purpose cb_session_purpose;
const char *cb_session_where;

static void in_child(void)
{
    if (cb_line.state != CB_OPEN) return;
    cb_line.state = CB_FORKED; /* the connection is the parent's */
    cb_link_close(&cb_line.link);
    pthread_mutex_init(&cb_line.lock, NULL);
    cb_answers_forget();
    cb_sender_forget();
    cb_listener_forget();
}

static void at_end(void)
{
    if (cb_line.state != CB_OPEN) return;
    pthread_mutex_lock(&cb_line.lock);
    if (cb_line_flush()) cb_link_leave(&cb_line.link);
    pthread_mutex_unlock(&cb_line.lock);
}

#define CB_NAME(name) name,
static void put_environment(struct cb_call *c)
{
    static const char *const names[] = {CB_ENVIRONMENT(CB_NAME)};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        /* Of a span, devices are chosen where all of them are known. */
        bool chosen_elsewhere = cb_span_member && strcmp(names[i], CB_VISIBLE_DEVICES) == 0;
        const char *value = chosen_elsewhere ? NULL : getenv(names[i]);
        cb_put_word(c, value != NULL);
        cb_put_string(c, value ? value : "");
    }
}

static CUresult hello(void)
{
    struct cb_call c;
    CB_OK(cb_call_begin_as(&c, CB_OP_HELLO, 0));
    cb_put_word(&c, CB_WIRE_MAGIC);
    cb_put_word(&c, CB_WIRE_VERSION);
    cb_put_word(&c, CB_OPS_SUM);
    put_environment(&c);
    cb_put_word(&c, cb_session_purpose);
    cb_put_word(&c, cb_span_member);
    CUresult result = cb_call_ask(&c);
    if (result == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH) {
        unsigned long long version = cb_take_word(&c), table = cb_take_word(&c);
        fprintf(
            stderr,
            "calabash: this client (protocol %u, table %016llx) and the server (protocol %llu, table %016llx)"
            " do not know each other\nhint: install the same version on both\n",
            CB_WIRE_VERSION, CB_OPS_SUM, version, table);
    }
    if (result == CUDA_SUCCESS && !cb_snapshot_take(&c)) result = CUDA_ERROR_UNKNOWN;
    cb_call_end(&c);
    return result;
}

bool cb_session_open(void)
{
    static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
    static bool prepared;
    char why[256];
    const char *where = cb_session_where ? cb_session_where : getenv("CALABASH_REMOTE");
    pthread_mutex_lock(&opening);
    bool ok = cb_line.state == CB_OPEN;
    static bool told;
    if (!where && !told) {
        told = true;
        fprintf(stderr,
                "calabash: CALABASH_REMOTE does not say where the GPU is\nhint: start the program with"
                " `calabash run`\n");
    }
    if (!ok && cb_line.state == CB_CLOSED && where) {
        cb_output_begin();
        ok = cb_link_open(&cb_line.link, where, why, sizeof why);
        if (!ok) fprintf(stderr, "calabash: %s\n", why);
        cb_line.gone = !ok;
        ok = ok && hello() == CUDA_SUCCESS && cb_sender_start();
        if (ok && !prepared) {
            prepared = pthread_atfork(NULL, NULL, in_child) == 0;
            atexit(at_end);
        }
        if (!ok) {
            cb_link_leave(&cb_line.link);
            cb_link_close(&cb_line.link);
        }
        if (ok) cb_line.state = CB_OPEN;
    }
    pthread_mutex_unlock(&opening);
    return ok;
}

bool cb_session_forked(void)
{
    return cb_line.state == CB_FORKED;
}
