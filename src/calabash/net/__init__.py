"""Tenant networks as pure functions: object model, checks, store, and translation to OVN, Kube-OVN and appliance files.

Layers, lowest first: ``addresses``, ``objects``, ``checks`` and ``appliances``, then ``store``, ``ovn`` and ``kubeovn``.
``fabric_partitions`` is separate: it computes the partitions of RDMA and NVLink fabrics.
"""
