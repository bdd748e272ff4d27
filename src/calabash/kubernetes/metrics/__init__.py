"""Server of external metrics for autoscalers (``external.metrics.k8s.io``): use of slices and lengths of queues.

API servers forward requests for this API group to the server (an "aggregated API"). ``series`` computes the values from
the objects that agents and the planner write, ``service`` handles the requests, ``frontproxy`` authenticates API
servers, and ``run`` is the program.
"""
