"""Reports of a node: GpuNode object, events, metrics, startup taint and usage records."""
