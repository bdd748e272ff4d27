"""The node side of every sharing mode: one module for each, behind the same few calls.

What lives here: what a mode needs on this machine beyond its slot (limits that the shim enforces, device nodes that
others may not open, one day a daemon or a hardware instance). What never lives here: what fits on a device and how it
is divided (``sharing``, pure), and when an allocation begins and ends (``allocations``). A new mode is one module in
``sharing`` with a ``MODE`` and one here with an ``open_mode``; ``registry`` finds it, nobody else names it.
"""
