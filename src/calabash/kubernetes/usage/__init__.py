"""Collection of usage records from the nodes of a cluster.

``node_identity`` authenticates nodes, ``attribution`` finds the tenant and project that pay for a record, and
``collection`` receives the records and writes them to the database. The agents of nodes measure usage; prices and
invoices are in the platform. A node can report usage only of pods that run on it.
"""
