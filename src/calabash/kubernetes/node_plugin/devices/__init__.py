"""Devices of a node as the kubelet sees them: the device plug-ins."""
