"""The process that operates a cluster beside its planner: the same API and console as those of one machine, from what stands
in the API server. Tenants and queues are objects there; people, tokens, usage and invoices are in its own database.

What never lives here: decisions about devices, which are the planner's.
"""
