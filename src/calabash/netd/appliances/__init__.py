"""Appliances on a host: NFV gateways and pairs of HAProxy in namespaces of their own, made and kept from the book of networks.

What they run is rendered in ``calabash.net.appliances``. Here it is put on a host and kept: a namespace each, its interfaces
plugged into the host's switch, files, and Debian's nftables, keepalived, conntrackd and HAProxy as processes of their own.
These go on when this process is killed; the next one finds them by their namespace and mends what is missing. Whatever is of
no appliance that is wanted is removed. Of two keepers of a host the second waits for the first to end.
"""
