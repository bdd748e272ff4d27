"""Certificates, TLS contexts and sockets of the servers that API servers and agents call."""
