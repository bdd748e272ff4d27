"""Ways to start something, one module each: each asks the board what would fit and returns a plan.

What lives here: the room that gangs are placed in (``room``), reservations (``reserve``), who may evict whom (``victims``), the
fewest that must go (``preempt``), moves (``defragment``). What never lives here: the order of the queue, and the registry's
changes; a plan is carried out by the cycle.
"""
