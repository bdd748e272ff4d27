"""Scheduling of pods over the nodes of a cluster."""
