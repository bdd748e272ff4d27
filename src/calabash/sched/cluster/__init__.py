"""The cluster as the scheduler sees it: what there is, what is free, where a shape fits, and where it fits best.

What lives here: resident arrays (``arrays``), shapes of requests (``shape``), feasibility (``fit``), MIG geometry (``mig``),
counts of what is asked for (``demand``), and the engine that keeps one score vector per shape (``engine``).
What never lives here: queues, gangs, time, or a reason to prefer one request to another.
"""
