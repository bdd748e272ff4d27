"""Placement policies, one module each behind one small protocol; combinable by weights.

A policy scores nodes for a shape and, for a shared device, chooses the device. It sees the resident arrays and the
shape, nothing else: what fits is not its business (``fit``), nor is caching (``engine``). A new policy is a
module that defines ``MAKERS``.
"""
