"""Operating what many teams share, whatever it runs on: tenants, people, tokens, who may do and see what, usage, invoices,
the audit log, and the HTTP on a Unix socket that serves them. Both the pool of one machine and that of a cluster stand on it.

What never lives here: devices, scheduling, the API server.
"""
