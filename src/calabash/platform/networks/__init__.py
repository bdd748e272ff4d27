"""Stored objects of tenant networks, and the permissions to change them."""
