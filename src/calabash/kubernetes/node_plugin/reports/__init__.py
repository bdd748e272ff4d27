"""Reports of a node: its GpuNode object, events, metrics and usage."""
