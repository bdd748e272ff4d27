"""Cluster state for placement: resident arrays of nodes and devices, feasibility of shapes, and the best placement.

Modules:

* ``spec``: nodes and devices as configured; ``shape``: what a request needs, and a placement;
* ``columns``, ``mig_columns``, ``arrays``: the resident arrays, and placing and releasing on them;
* ``fit``: nodes and devices where a shape fits; ``maxima``: quick upper bounds;
* ``device_choice``, ``best_effort``: devices within a node;
* ``domains``: racks, blocks and other domains of the network; ``restricted_placer``: choices within some nodes;
* ``engine``: cached scores per shape; ``scoring``: interface of placement policies;
* ``placer``, ``transaction``, ``releases``: what-if placements that can be undone;
* ``demand``: counts of requests per shape; ``mig_tables``: MIG geometries of simulated devices.

The row of a node is its index in the arrays. A *mask* is an array of True and False: by row, or by row and device. Many
functions take an array ``rows``, and return arrays with one entry for each of these rows.

The package knows no queues, gangs or time, and does not compare requests.
"""

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Bools, Floats, Ints, Rows
from calabash.sched.cluster.demand import Demand
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.scoring import PlacementPolicy, Scored, Scorer
from calabash.sched.cluster.shape import WHOLE_MILLI, NodePlacement, Shape, Topology
from calabash.sched.cluster.spec import GpuSpec, NodeSpec

__all__ = [
    "WHOLE_MILLI",
    "Bools",
    "Cluster",
    "CompiledShape",
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
