/* Captures under way, and what they forbid to which thread. */
#ifndef CALABASH_REMOTE_CLIENT_GRAPH_CAPTURE_H
#define CALABASH_REMOTE_CLIENT_GRAPH_CAPTURE_H

#include "remote/client/api/base.h"

/* CUDA_SUCCESS, or the error of a call that is forbidden while this thread, or any, captures; the capture is void then. */
CUresult cb_capture_forbids(void);
/* Whether what is given to the stream becomes part of a graph. Costs a question only while something is captured. */
bool cb_is_captured(CUstream stream);

/* Whether any stream is being captured. */
bool cb_captures_open(void);

#endif
