/* The session: the connection to the program, and the threads that serve it. */
#ifndef CALABASH_REMOTE_WORKER_SESSION_H
#define CALABASH_REMOTE_WORKER_SESSION_H

#include "remote/worker/request.h"

/* Receive bulk data of the command; return false if the program has ended. Not allowed after cb_release. */
bool cb_bulk_receive(struct cb_request *q, void *into, size_t bytes);
/* Send a part of an answer; the last one is sent after the command. Return false if the program has ended. */
bool cb_answer_part(struct cb_request *q, const void *data, size_t bytes, bool last);
/* Serve until the program has ended; the process then exits, with 0 if the program left properly. */
_Noreturn void cb_serve(void);

#endif
