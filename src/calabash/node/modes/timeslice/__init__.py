"""Mode timeslice: programs share a device by time slices of the driver."""
