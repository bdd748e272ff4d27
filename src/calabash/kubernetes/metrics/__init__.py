"""Metrics for autoscalers: how busy slices are and what waits in queues, as the API ``external.metrics.k8s.io``.

What lives here: the answers from what agents and the planner tell (``series``), the paths of the API (``service``), who may ask
(``frontproxy``), the program (``run``). What never lives here: a measurement, or a decision how many pods there should be.
"""
