"""Controllers of tenant networks: they keep OVN, appliances and fabrics equal to the desired state, and may end at any moment.

Contents: the network controller (reconciler, status conditions, process), ``appliances`` of gateway hosts, ``fabric``
partitions, ``checks`` of the connectivity of a VPC, and ``lab``, an OVN deployment in network namespaces. The translation
of networks to rows is in ``calabash.net``; the protocol of OVN's databases is in ``calabash.adapters.ovn``.
"""
