"""The agent of a cluster node: kubelet device plug-ins and DRA driver, on top of ``node.NodeAgent``.

The kubelet gives a container that asks for devices some device IDs, which by themselves stand for no particular device.
The devices are named in the pod's plan. The plan is read only when the kubelet is about to create the container
(``containers.prepare``), because only then is it certain which container has the device IDs. This package serves device
IDs to the kubelet, finds the containers that have them, carries out plans and claims, releases allocations, and reports
the state of the node. Placement is in the planner.
"""
