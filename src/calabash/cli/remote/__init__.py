"""Commands for remote devices: client and server."""
