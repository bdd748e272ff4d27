"""Addresses of tenant networks: arithmetic of ranges, allocation of free addresses, and addresses derived from numbers."""
