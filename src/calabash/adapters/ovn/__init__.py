"""Clients of the databases of OVN and Open vSwitch (northbound, southbound, local switch) over the OVSDB protocol.

Each client keeps a copy of the tables that it needs, which the server's updates keep up to date, and writes changes as
transactions. This package handles the locks of the databases, the leaders of clustered databases, and lost connections.
The rows to write are computed in ``calabash.net``, and ``calabash.controllers`` has them written.
"""
