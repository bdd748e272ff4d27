/* Captures under way, and the calls that they forbid to a thread. */
#ifndef CALABASH_REMOTE_CLIENT_GRAPH_CAPTURE_H
#define CALABASH_REMOTE_CLIENT_GRAPH_CAPTURE_H

#include "remote/client/api/base.h"

/*
 * CUDA_SUCCESS, or the error of a call that is forbidden while this thread, or any, captures; the capture is
 * then invalid.
 */
CUresult cb_capture_forbids(void);
/*
 * Return true if work issued to the stream becomes part of a graph. Asks the worker only while a capture is
 * under way.
 */
bool cb_is_captured(CUstream stream);

/* Return true if any stream is being captured. */
bool cb_captures_open(void);

#endif
