"""Whose turn it is: the tree of queues, fair shares, turns of owners, and the registry of gangs that wait and run.

What lives here: the tree with its amounts (``tree``, ``use``), the division of what there is (``fairshare``), turns of owners
(``turns``), the queue that goes next (``fairest``), gangs (``gang``) and where every request is (``registry``), what runs by
column (``unit_table``), promises (``reservation``).
What never lives here: devices, nodes, or a decision.
"""
