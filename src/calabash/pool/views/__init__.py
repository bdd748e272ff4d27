"""Build the replies of the pool's HTTP API from the state of devices, allocations and requests."""
