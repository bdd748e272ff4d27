"""HTTP servers and clients, TLS and sockets."""
