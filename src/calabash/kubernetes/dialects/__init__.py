"""Dialects: the resource names and annotations of each supported GPU system, translated to requests. Pure.

Each dialect is a module that defines ``DIALECT`` (``protocol``): the names of the system and their meaning in a
``GpuRequest``, with units. ``registry`` finds the modules. Placement is in ``planner``; writing to the pod is in
``admission``.
"""
