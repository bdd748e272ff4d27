"""The node's process: what cards there are, who holds which slice, and that everybody keeps to it.

What lives here: inventory and health of devices, who belongs to which allocation, slots (through which limits reach
tenants), the journal of allocations, reaping of what the dead left behind, residual memory, strangers, the arbiter of
compute shares; in ``modes`` the node side of each sharing mode. Front ends hold ``node.NodeAgent`` and nothing behind
it. What never lives here: which request goes where (scheduler), who may ask (front ends). Daemons are wiring; every
decision longer than a few lines is a pure function in a module of its own (``lifecycle``, ``health``).
"""
