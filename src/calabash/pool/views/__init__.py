"""Replies of the pool API."""
