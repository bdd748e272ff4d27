"""Device plug-ins of a node: offered device IDs, their health, maintenance of devices, and guard of device access."""
