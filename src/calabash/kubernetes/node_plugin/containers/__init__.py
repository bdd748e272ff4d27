"""Containers of a node: find the slices of a container, grant them, and write its CDI spec."""
