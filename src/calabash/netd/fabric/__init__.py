"""Keeps the fabrics for RDMA as the cards' use wants them: a tenant's cards in its own partition, freed cards in none.

What lives here: one driver for each way to divide a fabric, the round that has them follow the pool's grants, the simulated
managers. What never lives here: who is to be where (``calabash.net.fabric`` says it), and whether a card may be granted.
"""
