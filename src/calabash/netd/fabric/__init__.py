"""Keeps the fabrics for RDMA as the cards' use wants them: a tenant's cards in its own partition, freed cards in none.

What lives here: one driver for each way to divide a fabric, the round that has them follow the pool's grants, the simulated
managers. Not here: the rule of who is in which partition (``calabash.net.fabric_partitions``), and of which card may be granted.
"""
