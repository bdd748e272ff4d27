"""The planner: choose devices and nodes for pods, together with an unmodified kube-scheduler.

Subpackages, from the inside out:

* ``state``: pods, claims, queues, gangs and budgets; ``state.facts`` has the values that the planner reads and the
  actions that it requests.
* ``decide``: events in, actions out, without input, output or a clock; ``decide.core`` is its entry.
* ``watch``: mirrors of the API server, converted to facts and events.
* ``apply``: carries actions out as writes to the API server.
* ``serve``: the scheduler extender, probes and metrics.
* ``lead``: leader election, and the division of a cluster between planners.

``service`` connects the subpackages, and ``run`` is the program. Two subjects are elsewhere: the packages ``sharing``
and ``sched``, joined by ``binder``, decide what fits on a device; ``dialects`` reads the request of a pod.
"""
