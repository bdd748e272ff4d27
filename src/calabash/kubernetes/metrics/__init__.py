"""External metrics for autoscalers (``external.metrics.k8s.io``): use of slices and lengths of queues.

``series`` computes the values from the reports of agents and planner, ``service`` serves the paths of the API, ``frontproxy``
authenticates API servers, and ``run`` is the program.
"""
