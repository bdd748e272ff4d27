"""Mode passthrough: devices attached to virtual machines."""
