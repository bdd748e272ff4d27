"""Executors of the sharing modes on this node, one module per mode behind the interface of ``protocol``.

An executor makes what a mode needs on this machine beyond its slot: limits that the shim enforces, guarded device nodes,
daemons, MIG instances. Other packages decide what fits on a device and how it is divided (``sharing``, pure), and when an
allocation begins and ends (``allocations``). A new mode is one module in ``sharing`` with a ``MODE`` and one here with a
function ``open_mode``; ``registry`` finds it, and no other module names it.
"""
