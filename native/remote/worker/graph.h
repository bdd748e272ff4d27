/* What graphs keep for the program follows them: clones, parents, executables and launches. */
#ifndef CALABASH_REMOTE_WORKER_GRAPH_H
#define CALABASH_REMOTE_WORKER_GRAPH_H

void cb_graph_follow(void); /* once the driver is open */

#endif
