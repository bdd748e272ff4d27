"""Containers of a node: find the slices that a container gets, grant them, and write its CDI spec."""
