"""Controllers of tenant networks: they bring OVN, appliances and fabrics to the desired state.

A controller may be killed at any moment, because its next process reads the actual state again.

``networks`` is the network controller, with its inputs in ``sources`` and the conditions that it reports in ``status``.
``appliances`` runs on gateway hosts, ``fabric`` sets the partitions of RDMA fabrics, ``checks`` tests the connectivity
of a VPC, and ``lab`` is an OVN deployment in network namespaces. The translation of networks to rows of OVN's database
is in ``calabash.net``; the protocol of OVN's databases is in ``calabash.adapters.ovn``.
"""
