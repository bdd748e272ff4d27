"""Executors of the sharing modes on this node, one module per mode behind the interface of ``protocol``.

An executor creates the resources that allocations of its mode need on this machine besides their slots: limits that the
shim enforces, guarded device nodes, daemons, MIG instances. Other packages decide what fits on a device and how it is
divided (``sharing``, pure), and when an allocation begins and ends (``allocations``). To add a mode, add one module to
``sharing`` with a variable ``MODE``, and one to this package with a function ``open_mode``; ``registry`` finds both by
name.
"""
