"""Usage of all nodes of a cluster, collected beside the planner.

What lives here: who may send (``identity``), on whose account an interval goes (``attribution``), and the receiving end
(``collection``). What never lives here: metering, which the agents of nodes do, and prices. Nodes are believed about
themselves only: a node speaks for pods that run on it, and for no other node.
"""
