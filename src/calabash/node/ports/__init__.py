"""Ports of tenant networks on this host: made with an allocation, held by one at a time, gone with it.

What of a port is on a host is a network namespace of the allocation's own, a pair of interfaces of which one end is in it, and
the other end as a port of the host's switch, called as OVN calls it. All of it stays when the agent ends, so traffic is never
touched by that; the next agent finds it by its names.
"""
