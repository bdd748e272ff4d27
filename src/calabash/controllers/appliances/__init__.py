"""Appliances on a host: replicas of NFV gateways and L7 load balancers, each in a network namespace.

The configuration of a replica is rendered in ``calabash.net.appliances``. This package creates the replica's namespace,
connects its interfaces to the switch of the host, writes the files, and runs Debian's nftables, keepalived, conntrackd
and HAProxy as independent processes. These continue when the controller process is killed; the next controller process
finds them by their namespaces and repairs what is missing. Replicas that no network needs are removed. If two
controller processes are started for one host, the second waits for the first to end.
"""
