"""The arbiter process, which divides the time of devices between allocations."""
