"""Ports of tenant networks on this host. One allocation at most holds a port; the port is made and removed with it.

An allocation with ports has a network namespace. For each port there is a pair of interfaces: one end is in the
namespace, the other is a port of the host's switch under the port's OVN name. Namespaces, interfaces and switch ports
stay when the agent stops, so traffic is not interrupted; the next agent finds them by their names.
"""
