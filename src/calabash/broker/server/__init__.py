"""Server of remote devices: tokens, leases and the sessions of programs."""
