"""The way to a pool: its HTTP API over a Unix socket, asked by a process that waits, by an event loop, or from elsewhere.

What lives here: one question and one answer as bytes, and the clients that the command line, the gateway and the server of
remote cards share. What never lives here: what is asked for, permission, the shapes of replies (``calabash.api`` has them).
"""
