"""The agent of a cluster node: kubelet device plug-ins and DRA driver, on top of ``node.NodeAgent``.

A container that asks for devices gets device IDs. The devices behind them are in the pod's plan, which is read when the
kubelet is about to create the container and not earlier (``containers.prepare``), so that a container cannot get the slices
of another. This package serves device IDs, finds the containers that have them, carries out plans and claims, releases
allocations, and reports the state of the node. Placement is in the planner.
"""
