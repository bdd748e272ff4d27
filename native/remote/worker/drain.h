/* Copies to the program that it has not waited for: their data is sent when their streams have come that far. */
#ifndef CALABASH_REMOTE_WORKER_DRAIN_H
#define CALABASH_REMOTE_WORKER_DRAIN_H

#include "remote/worker/request.h"

#define CB_FETCH_MAX (64u << 20)

/* Memory for the data of one; NULL: too much is under way. */
uint8_t *cb_drain_room(size_t bytes);
void cb_drain_free(uint8_t *data); /* it is not used after all */
/* What the stream does up to here fills `data`, the room that was given. */
CUresult cb_drain_add(const struct cb_frame *of, uint8_t *data, CUstream stream);
/* It will be filled whenever `graph`, or an executable of it, is launched; the room is the graph's from here on. */
CUresult cb_drain_keep(const struct cb_frame *of, uint8_t *data, CUgraph graph);
/* `to` keeps what `from` keeps: it was made from it, or contains it. */
void cb_drain_copy(void *to, void *from);
/* The executable, or the graph, is no more. */
void cb_drain_gone(void *owner);
/* The executable has been launched there. */
CUresult cb_drain_launched(void *owner, CUstream stream);
/* Send what is ready. */
void cb_drain(void);

#endif
