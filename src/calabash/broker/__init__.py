"""Lease devices of a pool to programs on other machines: the broker daemon and its client.

The broker is a daemon on the machine of the pool. This package contains its tokens and signing keys, device filters,
leases, the single listening port that programs and command lines share, and the client side. A lease is one brokered
allocation of the pool, requested through the pool's public API. The pool's scheduler chooses the devices. The C
programs of ``native/remote`` execute the CUDA calls that remote programs forward. The broker passes each program's
connection to the worker process of its lease, so the data of a session does not pass through this package.
"""
