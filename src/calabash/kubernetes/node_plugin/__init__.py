"""The agent of one node of a cluster: the kubelet's device plug-in in front of ``node.NodeAgent``.

A container that asks for devices gets tokens; which devices they mean is said by its pod's plan and looked up when the
kubelet is about to make the container, never before (``prepare``). So a container cannot be given what was meant for
another. What lives here: tokens and their names, whose they are, the plan carried out, what a container needs to use it,
how long it is kept, what the node tells of itself. What never lives here: which pod goes where.
"""
