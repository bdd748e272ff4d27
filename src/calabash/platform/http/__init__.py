"""The HTTP server on Unix sockets, its limits, and the processes beside the pool."""
