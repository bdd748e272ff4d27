"""Mode mig: MIG instances as slices."""
