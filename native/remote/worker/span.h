/* Of a session of a span: whatever the driver allocates from now on lies in its own range of addresses. */
#ifndef CALABASH_REMOTE_WORKER_SPAN_H
#define CALABASH_REMOTE_WORKER_SPAN_H

#include <stdint.h>

/* As that member of a span. */
void cb_span_keep_apart(uint8_t member);

#endif
