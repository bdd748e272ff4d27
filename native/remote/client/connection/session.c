#include "remote/client/connection/session.h"

#include "remote/client/connection/listener.h"
#include "remote/client/connection/sender.h"
#include "remote/client/device/device_snapshot.h"
#include "remote/client/launch/kernel_output.h"
#include "remote/wire/environment.h"
#include "remote/wire/tls.h"

#include <stdio.h>
#include <unistd.h>

enum cb_purpose cb_session_purpose;
const char *cb_session_where;

static void session_after_fork(void)
{
    if (cb_command_buffer.state != CB_OPEN) return;
    cb_command_buffer.state = CB_FORKED; /* the connection is the parent's */
    cb_transport_close(&cb_command_buffer.link);
    pthread_mutex_init(&cb_command_buffer.lock, NULL);
    cb_answers_after_fork();
    cb_sender_after_fork();
    cb_listener_after_fork();
}

static void session_at_exit(void)
{
    if (cb_command_buffer.state != CB_OPEN) return;
    pthread_mutex_lock(&cb_command_buffer.lock);
    if (cb_command_buffer_flush()) cb_transport_leave(&cb_command_buffer.link);
    pthread_mutex_unlock(&cb_command_buffer.lock);
}

#define CB_NAME(name) name,
static void environment_put(struct cb_call *c)
{
    static const char *const names[] = {CB_ENVIRONMENT(CB_NAME)};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        /* In a span, devices are chosen where the devices of all servers are known. */
        bool chosen_elsewhere = cb_span_member && strcmp(names[i], CB_VISIBLE_DEVICES) == 0;
        const char *value = chosen_elsewhere ? NULL : getenv(names[i]);
        cb_put_word(c, value != NULL);
        cb_put_string(c, value ? value : "");
    }
}

static CUresult session_hello(void)
{
    struct cb_call c;
    CB_OK(cb_call_begin_as(&c, CB_OP_HELLO, 0));
    cb_put_word(&c, CB_WIRE_MAGIC);
    cb_put_word(&c, CB_WIRE_VERSION);
    cb_put_word(&c, CB_OPS_SUM);
    environment_put(&c);
    cb_put_word(&c, cb_session_purpose);
    cb_put_word(&c, cb_span_member);
    CUresult result = cb_call_ask(&c);
    if (result == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH) {
        unsigned long long version = cb_take_word(&c), table = cb_take_word(&c);
        fprintf(
            stderr,
            "calabash: this client (protocol %u, table %016llx) and the server (protocol %llu, table %016llx)"
            " have different protocols\nhint: install the same version on both\n",
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
    char why[CB_TLS_WHY];
    const char *where = cb_session_where ? cb_session_where : getenv("CALABASH_REMOTE");
    pthread_mutex_lock(&opening);
    bool ok = cb_command_buffer.state == CB_OPEN;
    static bool told;
    if (!where && !told) {
        told = true;
        fprintf(stderr, "calabash: CALABASH_REMOTE names no GPU server\nhint: start the program with"
                        " `calabash run`\n");
    }
    if (!ok && cb_command_buffer.state == CB_CLOSED && where) {
        cb_output_begin();
        ok = cb_transport_open(&cb_command_buffer.link, where, why, sizeof why);
        if (!ok) fprintf(stderr, "calabash: %s\n", why);
        cb_command_buffer.gone = !ok;
        ok = ok && session_hello() == CUDA_SUCCESS && cb_sender_start();
        if (ok && !prepared) {
            prepared = pthread_atfork(NULL, NULL, session_after_fork) == 0;
            atexit(session_at_exit);
        }
        if (!ok) {
            cb_transport_leave(&cb_command_buffer.link);
            cb_transport_close(&cb_command_buffer.link);
        }
        if (ok) cb_command_buffer.state = CB_OPEN;
    }
    pthread_mutex_unlock(&opening);
    return ok;
}

bool cb_session_forked(void)
{
    return cb_command_buffer.state == CB_FORKED;
}
