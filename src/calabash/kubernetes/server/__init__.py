"""Server of a cluster: API and console as on a single machine, on top of objects in the API server.

Tenants and queues are objects of the API server; users, tokens, usage and invoices are in the server's own database.
Placement is in the planner.
"""
