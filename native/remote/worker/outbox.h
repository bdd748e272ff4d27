/* Buffer of answers and notices to the program, from all threads, in any order. */
#ifndef CALABASH_REMOTE_WORKER_OUTBOX_H
#define CALABASH_REMOTE_WORKER_OUTBOX_H

#include "remote/worker/request.h"

/*
 * Put an answer or notice; `op` is an enum cb_notice. It may wait for others or the next flush. Return false if
 * the program has ended.
 */
bool cb_outbox_put(const struct cb_frame *of, uint16_t op, uint16_t flags, CUresult result, const void *data,
                   size_t bytes);
/* The same with some words before the data. */
bool cb_outbox_notice(const struct cb_frame *of, uint16_t op, uint16_t flags, CUresult result,
                      const uint64_t *words, unsigned int count, const void *data, size_t bytes);
bool cb_outbox_flush(void);

#endif
