"""The scheduler as a function over resident arrays: who gets which devices of which node, and why not.

What lives here: the arrays of a cluster (``cluster``), request shapes (``shape``), feasibility (``fit``), MIG geometry
(``mig``), the decision engine with one cached score vector per shape (``engine``), placement policies (``policies``),
tables learned from demand (``tables``), and above them queues, gangs, preemption, defragmentation and explanations.
What never lives here: clocks, threads, files, sockets, logging, or the name of any front end. Time is an argument.
The stand-alone pool, the Kubernetes planner and the simulator use it unchanged.
"""
