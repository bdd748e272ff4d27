"""Devices offered to ResourceClaims (DRA, ``resource.k8s.io``): ResourceSlices, driver parameters, allocated claims.

This package names the devices that claims can have, builds and publishes the ResourceSlices of a node, reads driver
parameters, and translates claims to requests and allocations to slices. The scheduler chooses the devices of a claim;
``kubernetes.node_plugin`` passes them to containers.
"""
