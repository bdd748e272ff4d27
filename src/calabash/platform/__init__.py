"""Multi-tenant platform shared by the pool of one machine and the pool of a cluster.

It has tenants, users, tokens, permissions, visibility, usage, invoices, the audit log, notifications, the stored objects of
tenant networks, and the HTTP API on a Unix socket.

This package has no code that accesses devices, schedules, or talks to the Kubernetes API server.
"""
