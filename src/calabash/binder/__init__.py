"""Binder: joins the scheduler and the sharing modes, and turns decisions of the scheduler into grants.

``local`` is the binder of one machine: it passes events to the scheduler and carries out its decisions through the node
agent. ``cluster`` is the scheduler of many nodes for the planner. ``shapes`` converts devices and requests for both.
The scheduler does not depend on sharing modes, and sharing modes do not depend on the scheduler; the binder connects
them. The package contains no permissions, HTTP, journals or device access.
"""
