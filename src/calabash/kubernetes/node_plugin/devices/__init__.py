"""Device plug-ins of a node: the device IDs that it offers and their health. Also maintenance and access of devices."""
