"""The cluster as the scheduler sees it: what there is, what is free, where a shape fits, and where it fits best.

What lives here: resident arrays (``columns``, ``arrays``), shapes of requests (``shape``), feasibility (``fit``), bounds on
it (``maxima``), device choice (``choose``), MIG tables for simulated clusters (``mig_tables``), what-if transactions
(``board``) and releases (``releases``), counts of what is asked for (``demand``), and the engine that keeps one score
vector per shape (``engine``).
What never lives here: queues, gangs, time, or a reason to prefer one request to another.
"""

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Bools, Floats, Ints, Rows
from calabash.sched.cluster.demand import Demand
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.fit import Compiled
from calabash.sched.cluster.scoring import PlacementPolicy, Scored, Scorer
from calabash.sched.cluster.shape import WHOLE_MILLI, NodePlacement, Shape, Topology
from calabash.sched.cluster.spec import GpuSpec, NodeSpec

__all__ = [
    "WHOLE_MILLI",
    "Bools",
    "Cluster",
    "Compiled",
    "Demand",
    "Engine",
    "Floats",
    "GpuSpec",
    "Ints",
    "NodePlacement",
    "NodeSpec",
    "PlacementPolicy",
    "Rows",
    "Scored",
    "Scorer",
    "Shape",
    "Topology",
]
