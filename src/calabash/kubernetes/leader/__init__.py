"""Leader election by a Lease object."""
