"""Allocations of one node: their table, life cycle, grants, and how they end."""
