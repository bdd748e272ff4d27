"""Client of remote servers: the user's known servers and keys, the choice of a server, and leases."""
