"""The HTTP server on Unix sockets, its request limits, and the supervision of the pool's child processes."""
