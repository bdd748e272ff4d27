"""Clients of the pool's HTTP API: over its Unix socket, blocking or on an event loop, and over a gateway.

They are shared by the command line, the gateway and the broker. Permissions and the types of replies are elsewhere
(``calabash.api``).
"""
