"""HTTP server of the gateway: connections, limits and checks of requests."""
