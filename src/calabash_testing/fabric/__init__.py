"""Simulated managers of network fabrics."""
