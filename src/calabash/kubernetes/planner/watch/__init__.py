"""Mirrors of the API server, and the facts that the planner reads from objects."""
