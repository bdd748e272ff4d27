"""Ports of tenant networks and partitions of fabrics of a pool."""
