"""The planner: which pod gets which devices of which node, and the handshake with a stock kube-scheduler.

What lives here, from the inside out:

* ``facts``: what the planner is told and what it wants done, as frozen values; ``reading`` makes them of API objects;
* ``core`` with its parts (``book``, ``pods``, ``fleet``, ``queues``, ``decisions``, ``answers``, ``permits``): events in,
  actions out, no I/O and no clock;
* ``extender``: the HTTP server that kube-scheduler asks; ``executor``: carries actions out; ``lease``: who leads;
  ``service``: wiring.

What never lives here: what fits on a device (``sharing``, ``sched``, joined by ``binder``), and how a pod's words are
understood (``dialects``).
"""
