"""Certificates of the servers that API servers call."""
