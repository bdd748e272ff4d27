"""Metering of the usage of allocations, as usage records of consecutive intervals and as totals."""
