"""Allocations of one node: the table of held allocations, their life cycle, and checks before a grant."""
