"""HTTP API routes of the pool of one machine, one module for each kind of object.

Handlers decode requests, wait for results and encode replies. Permission checks and decisions are in the services that they
call.
"""
