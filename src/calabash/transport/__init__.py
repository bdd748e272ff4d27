"""HTTP servers and clients, TLS certificates, and limits of connections."""
