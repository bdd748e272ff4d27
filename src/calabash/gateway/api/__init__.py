"""API of the gateway: each request is forwarded to the pool with the token of its user."""
