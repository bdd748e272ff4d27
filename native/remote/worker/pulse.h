/* That the worker lives is said by a thread of its own: a command may take as long as it likes. */
#ifndef CALABASH_REMOTE_WORKER_PULSE_H
#define CALABASH_REMOTE_WORKER_PULSE_H

#include "remote/wire/stream.h"

/* False: there is no thread for it. */
bool cb_pulse_start(struct cb_stream *stream);

#endif
