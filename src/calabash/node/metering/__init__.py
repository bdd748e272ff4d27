"""Metering: usage of allocations as intervals and totals."""
