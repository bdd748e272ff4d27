"""Controller of RDMA fabric partitions: puts the endpoints of a device into the partition of the tenant that uses the device.

Contents: one driver for each kind of fabric, the reconcile round that follows the pool's grants, and simulated fabric managers
for tests. The rule of which endpoint belongs to which partition is in ``calabash.net.fabric_partitions``; whether a device may
be granted is decided by the pool.
"""
