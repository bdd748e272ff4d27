"""Tenant networks as pure functions: object model, checks, store, and translation to OVN, Kube-OVN and appliance files.

The subpackages form layers, of which each uses only lower ones. From the lowest: ``addresses``, ``objects``, ``checks``
and ``appliances``, then ``store``, ``ovn`` and ``kubeovn``. The module ``fabric_partitions`` is independent of them: it
computes the partitions of RDMA and NVLink fabrics.
"""
