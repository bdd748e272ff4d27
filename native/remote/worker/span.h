/* Of a session of a span: whatever the driver allocates from now on lies in its own range of addresses. */
#ifndef CALABASH_REMOTE_WORKER_SPAN_H
#define CALABASH_REMOTE_WORKER_SPAN_H

void cb_span_keep_apart(void);

#endif
