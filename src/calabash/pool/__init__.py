"""The pool of one machine: agent, scheduler and journal in one process behind a Unix socket.

What lives here: the daemon's wiring, the HTTP API, the pool that joins requests to the node's agent, and the small
client that the command line uses. What never lives here: device access, SQL, decisions about shares or health.
"""
