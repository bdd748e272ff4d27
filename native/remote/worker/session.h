/* The connection to the program, and the threads that serve it. */
#ifndef CALABASH_REMOTE_WORKER_SESSION_H
#define CALABASH_REMOTE_WORKER_SESSION_H

#include "remote/worker/request.h"

/* Receive bulk data of the command; false: the program is gone. Not after cb_release. */
bool cb_bulk_receive(struct cb_request *q, void *into, size_t bytes);
/* Send a part of an answer; the last one is sent after the command. False: the program is gone. */
bool cb_answer_part(struct cb_request *q, const void *data, size_t bytes, bool last);
/* Serve until the program is gone; the process ends then, with 0 when it left as it should. */
_Noreturn void cb_serve(void);

#endif
