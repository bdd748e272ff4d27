"""Clients of the databases of OVN and Open vSwitch (northbound, southbound, local switch) over the OVSDB protocol.

A connection follows its database and writes transactions to it; rows are values; names, locks, leaders and lost
connections
are handled here. The rows to write are computed in ``calabash.net``, and written by ``calabash.controllers``.
"""
