"""Serve the pool's API and the web console over TCP, in an unprivileged process without a database.

This package contains connections and TLS, sessions of the console, the forwarding of API requests to the pool with the
requesting user's token, pages rendered from the pool's typed replies, and limits for each address and token. The pool
decides permissions, not the gateway. The gateway keeps no state that a restart would lose.
"""
