"""Client of remote servers: accounts, server choice, and leases."""
