/* Propagation of the copies that graphs keep for the program: to clones, parents, executables and launches. */
#ifndef CALABASH_REMOTE_WORKER_GRAPH_H
#define CALABASH_REMOTE_WORKER_GRAPH_H

void cb_graph_follow(void); /* call once the driver is open */

#endif
