/* Thread in which functions of the program run, one after another, when notices ask for them. */
#ifndef CALABASH_REMOTE_CLIENT_STREAM_CALLBACK_THREAD_H
#define CALABASH_REMOTE_CLIENT_STREAM_CALLBACK_THREAD_H

#include "remote/client/api/base.h"
#include "remote/wire/frame.h"

struct cb_notified {
    uint32_t seq; /* of the command that the notice is about */
    bool kept;
    CUresult result;
    uint64_t word;
};

/* For takers of notices: call `run` in that thread. Return false if there is no memory. */
bool cb_callback_queue(void (*run)(const struct cb_notified *n), const struct cb_frame *frame,
                       CUresult result, uint64_t word);
/* Wait until all callbacks queued before have run; return at once in that very thread. */
void cb_callbacks_wait(void);

#endif
