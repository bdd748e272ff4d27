"""Dialects: the resource names and annotations of each supported GPU system, translated to requests. Pure.

A dialect is one system's vocabulary for asking for GPUs. Each dialect is a module that defines ``DIALECT`` (an instance
of ``protocol.Dialect``): the resource names and annotations of the system, and how their values, with units, become a
``GpuRequest``. ``registry`` finds the modules. Placement is in ``planner``; writing to the pod is in ``admission``.
"""
