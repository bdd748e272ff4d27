"""The second door to a node's devices: what Kubernetes' own allocator (``resource.k8s.io``) is told, and what it decided.

What lives here: names of devices that claims can have, a node's state as ResourceSlices, their keeping in the API server, what
claims may say to the driver, and an allocated claim as the slices that an agent grants. What never lives here: how a slice
reaches a container (``kubernetes.node_plugin``), and which device a claim gets, which the scheduler decides.
"""
