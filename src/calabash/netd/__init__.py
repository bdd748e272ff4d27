"""The network controller: keeps OVN equal to what the pool's book of networks describes; it may end at any moment.

What lives here: the round of comparing and writing, how far networks have been carried out, the process, and the labs.
What never lives here: which rows a network needs (``calabash.net``), and the databases' protocol (``calabash.seams.ovn``).
"""
