"""A Kubernetes API server in memory."""
