"""Collection of usage records from the nodes of a cluster.

``node_identity`` authenticates nodes, ``attribution`` finds the tenant and project of a record, and ``collection`` receives
and commits the records. Metering is done by the agents of nodes; prices are in the platform. A node can report usage only of
pods that run on it.
"""
