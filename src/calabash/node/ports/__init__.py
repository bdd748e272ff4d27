"""Ports of tenant networks on this host. A port has at most one holder, and is made and removed with its allocation.

An allocation with ports has a network namespace. For each port there is a pair of interfaces: one end is in the namespace, the
other is a port of the host's switch under the port's OVN name. All of it stays when the agent stops, so traffic is not
interrupted; the next agent finds the parts by their names.
"""
