"""Caches of API server objects, kept by list and watch."""
