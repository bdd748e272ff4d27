"""The embedded network: OVN and its hosts in network namespaces of this machine, for trying, for tests and for one machine.

A ``Lab`` is central (the databases over Unix sockets, the southbound one also over TLS for hosts, and northd), hosts with Open
vSwitch in its userspace datapath, two of which may be gateways, and a world outside. All of it is under one directory and in
namespaces with one prefix, and is taken away with them. The programs are this machine's own where these are new enough, else
Debian 13's, as files in a cache. Nothing of a tenant's book of networks lives here.
"""
