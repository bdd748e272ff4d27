"""Pool of one machine: node agent, scheduler and journal in one process behind a Unix socket.

This package has the daemon, the HTTP API of the pool, and the services that turn API requests into calls of the scheduler and
of the node agent. Device access, SQL and decisions about shares or health are in other packages.
"""
