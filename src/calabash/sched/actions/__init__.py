"""Actions: ways to start the requests of a gang. Each action returns a plan, which the cycle carries out.

Modules:

* ``allocate``: placement on free devices; ``packing``: placement of several members together;
* ``evict``: eviction of victims, by the rules of ``reclaim``, ``preempt``, ``victims`` and ``quota``; ``victim_search``: search
  for the fewest victims, over a ``unit_pool`` and ``freeable_devices``;
* ``defragment``: moves of small requests;
* ``reserve``, ``estimate``: reservations for blocked gangs, and their estimated start;
* ``backfill``: use of reserved nodes by other requests;
* ``plan``: the result of an action.

The order of the queues and changes of the registry belong to the cycle.
"""
