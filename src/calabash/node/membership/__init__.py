"""Membership: which processes belong to which allocation."""
