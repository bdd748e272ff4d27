"""Whose turn it is: the tree of queues, fair shares, and the registry of gangs that wait and run.

What lives here: the tree with its amounts (``tree``), the division of what there is (``fairshare``), gangs and where every
request is (``registry``). What never lives here: devices, nodes, or a decision.
"""
