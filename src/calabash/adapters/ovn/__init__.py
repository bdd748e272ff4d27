"""The databases of OVN and Open vSwitch: northbound, southbound, and that of one host, spoken in OVSDB's own protocol.

What lives here: one connection that follows its database and writes transactions to it, rows as values, and what is wrong
with names, locks, leaders and lost connections. What never lives here: which rows there should be (``calabash.net`` knows),
and when (``calabash.controllers``).
"""
