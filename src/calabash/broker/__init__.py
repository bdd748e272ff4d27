"""Lease devices of a pool to programs on other machines: the broker daemon and its client.

The broker runs beside a pool. This package contains its tokens and signing keys, device filters, leases, the single
listening port that programs and command lines share, and the client side. A lease is one brokered allocation of the pool,
requested through the pool's public API. The pool's scheduler chooses the devices, ``native/remote`` executes forwarded
calls, and each program's connection is passed to the worker process of its lease, so no session data passes through here.
"""
