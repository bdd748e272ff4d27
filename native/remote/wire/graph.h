/* Nodes of graphs: which list of them is asked for. */
#ifndef CALABASH_REMOTE_WIRE_GRAPH_H
#define CALABASH_REMOTE_WIRE_GRAPH_H

enum cb_nodes { CB_NODES_ALL, CB_NODES_ROOT, CB_NODES_BEFORE, CB_NODES_BEHIND, CB_NODES_EDGES };

#define CB_NODES_MAX 4096u /* of one list */

#endif
