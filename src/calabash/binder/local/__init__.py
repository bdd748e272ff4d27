"""Queueing, scheduling and granting of requests on one machine."""
