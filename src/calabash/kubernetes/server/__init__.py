"""Server of a Kubernetes cluster: the same HTTP API and web console as on a single machine.

The server reads devices, pods, queues and tenants as objects of the Kubernetes API server. Users, tokens, usage records
and invoices are in the server's own database. The server does not place pods: the planner does.
"""
