"""Appliances on a host: NFV gateways and HAProxy pairs, each in a network namespace, kept equal to the networks.

Their configuration is rendered in ``calabash.net.appliances``. This package creates the namespace of each replica, joins its
interfaces to the switch of the host, writes the files, and runs Debian's nftables, keepalived, conntrackd and HAProxy as
independent processes. These continue when this process is killed; the next one finds them by their namespaces and repairs what
is missing. Replicas that are not wanted are removed. Of two processes for one host, the second waits for the first to end.
"""
