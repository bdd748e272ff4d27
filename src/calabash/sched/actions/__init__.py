"""Ways to start something, one module each: each asks the board what would fit and returns a plan.

What lives here: free room (``allocate``), others' victims (``evict``, by the rules of ``reclaim``, ``preempt``, ``victims``
and ``quota``, and the search for the fewest in ``search``, over a ``pool`` of units and devices to be freed, ``emptying``),
moves (``defragment``), promises (``reserve``, ``estimate``) and who may pass them (``backfill``). What never lives here: the
order of the queues, and changes of the registry: a plan (``plan``) is carried out by the cycle.
"""
