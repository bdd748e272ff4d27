/* Captures of streams into graphs, as far as copies must know of them. */
#ifndef CALABASH_REMOTE_CLIENT_CAPTURE_H
#define CALABASH_REMOTE_CLIENT_CAPTURE_H

#include "remote/client/base.h"

/* Whether what is given to the stream becomes part of a graph. Costs a question only while something is captured. */
bool cb_is_captured(CUstream stream);

#endif
