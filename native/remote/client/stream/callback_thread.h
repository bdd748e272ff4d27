/* The thread in which functions of the program's run, one after another, as notices ask for them. */
#ifndef CALABASH_REMOTE_CLIENT_STREAM_CALLBACK_THREAD_H
#define CALABASH_REMOTE_CLIENT_STREAM_CALLBACK_THREAD_H

#include "remote/client/api/base.h"
#include "remote/wire/frame.h"

struct cb_notified {
    uint32_t seq; /* of the command that it is about */
    bool kept;
    CUresult result;
    uint64_t word;
};

/* For those who read: `run` is called there. False: no memory. */
bool cb_notify(void (*run)(const struct cb_notified *n), const struct cb_frame *frame, CUresult result,
               uint64_t word);
/* Wait until all that was asked before has run; at once in that very thread. */
void cb_notified_all(void);

#endif
