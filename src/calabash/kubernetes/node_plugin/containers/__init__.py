"""Containers on a node: which slices they have, and how they get them."""
