"""Writes of the planner to the API server."""
