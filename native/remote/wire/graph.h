/* Graph nodes: the lists that can be requested, and the changes to a node. */
#ifndef CALABASH_REMOTE_WIRE_GRAPH_H
#define CALABASH_REMOTE_WIRE_GRAPH_H

enum cb_nodes { CB_NODES_ALL, CB_NODES_ROOT, CB_NODES_BEFORE, CB_NODES_BEHIND, CB_NODES_EDGES };

enum cb_node_change { CB_NODE_ADD, CB_NODE_SET, CB_NODE_EXEC_SET };

#define CB_TAIL_MAX  512u  /* nodes that the next one of a capture follows */
#define CB_NODES_MAX 4096u /* of one list */

#endif
