"""Controller of RDMA fabric partitions: puts the endpoints of a device into the partition of the tenant that uses it.

An endpoint is an address of a device on a fabric, such as the GUID of an InfiniBand port. This package has one driver
for each kind of fabric, the reconcile round that follows the pool's grants, and simulated fabric managers for tests.
``calabash.net.fabric_partitions`` decides which endpoint belongs to which partition. The pool decides whether a device
may be granted.
"""
