"""The store of network objects: one immutable value that checks every change, and the plans that apply manifests to it."""
