/* Asynchronous copies to the program: their data is sent when their streams have reached that point. */
#ifndef CALABASH_REMOTE_WORKER_PENDING_COPIES_H
#define CALABASH_REMOTE_WORKER_PENDING_COPIES_H

#include "remote/worker/request.h"

#define CB_ASYNC_COPY_MAX (64u << 20)

/* Buffer for the data of a copy; NULL: too much is under way. */
uint8_t *cb_pending_copy_buffer(size_t bytes);
void cb_pending_copy_free(uint8_t *data); /* release an unused buffer */
/* Register a copy: the work issued to the stream so far fills `data`, a buffer from cb_pending_copy_buffer(). */
CUresult cb_pending_copy_add(const struct cb_frame *of, uint8_t *data, CUstream stream);
/*
 * Register a copy that runs whenever `graph`, or an executable of it, is launched; the graph owns the buffer
 * from here on.
 */
CUresult cb_pending_copy_keep(const struct cb_frame *of, uint8_t *data, CUgraph graph);
/* Let `to` keep what `from` keeps, because it was made from it or contains it. */
void cb_pending_copy_inherit(void *to, void *from);
/* The executable, or the graph, was destroyed. */
void cb_pending_copy_owner_destroyed(void *owner);
/* The executable has been launched in the stream. */
CUresult cb_pending_copy_graph_launched(void *owner, CUstream stream);
/* Send the data of completed copies. */
void cb_pending_copies_send(void);

#endif
