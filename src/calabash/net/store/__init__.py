"""Store of network objects: one immutable value that checks every change, and changes that apply manifests to it."""
