"""Whose words a pod asks in: one module per dialect, each behind the same small protocol. Pure.

What lives here: for every system whose pods run here unchanged, which resource names and annotations are its own, and
what they mean in a ``GpuRequest``, unit by unit. What never lives here: whether it fits and where (planner), what is then
written to the pod (``admission``). A new dialect is one new module with a ``DIALECT``, entered in ``registry``.
"""
