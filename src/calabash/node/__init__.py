"""Node agent: inventory of devices, allocations, and enforcement of their limits on one machine.

The package holds inventory and health of devices, membership of processes in allocations, slots (the shared pages
through which limits reach tenants), the journal of allocations, cleanup after programs that have ended, accounting of
residual memory, detection of unmanaged processes, and the arbiter of compute shares. ``modes`` has the node side of
each sharing mode. Front ends use ``NodeAgent`` only. The package does not choose devices for requests (scheduler) and
does not check permissions (front ends). ``agent`` and ``wiring`` only connect components; decisions longer than a few
lines are pure functions in modules of their own (``lifecycle``, ``conditions``).
"""
