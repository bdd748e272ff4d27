"""The scheduler: places requests for GPUs on nodes, with queues, gangs, eviction, reservations and explanations.

Subpackages and modules:

* ``cluster``: arrays of nodes and devices, shapes of requests, feasibility, MIG placement, cached scores per shape;
* ``policies``: placement policies, and the demand tables of learned policies;
* ``queues``: queue tree, fair shares, gangs, and the registry of waiting and running requests;
* ``actions``: ways to start a request: allocate, preempt, reclaim, defragment, reserve, backfill;
* ``explain``: explanations of why a request waits;
* ``scheduler``: the public interface; ``cycle``, ``rounds``, ``scheduling_order``, ``cycle_memory``: one pass over the queues.

Terms of the package:

* A *gang* is a set of requests of which the first ``min_member``, its *core*, start together. Its other members are
  *surplus*.
* A *start group* is what is started in one attempt: the core of a gang, or one surplus member. A *unit* is the same of
  running requests: the core or the surplus member that is evicted as a whole.
* A unit is *in quota* if it is within the guaranteed amount of its queue; otherwise it is *borrowed*.
* A *held node* is a node that is kept free for a gang with a reservation.
* The *row* of a node is its index in the arrays of the cluster. A *mask* is an array of True and False, by row or by
  row and device. Many functions take an array ``rows``, and return arrays with one entry for each of these rows.
* *Eviction order* sorts units: lower priority first, then surplus before cores, then the youngest first.
* A *milli* of a device is a thousandth of its compute.

The package has no clocks, threads, files, sockets or logging, and knows no front end. Time is an argument. The pool, the
Kubernetes planner and the simulator use it through the names below.
"""

from calabash.sched.amounts import ZERO, Amount
from calabash.sched.cluster.scoring import PlacementPolicy
from calabash.sched.cluster.shape import WHOLE_MILLI, NodePlacement, Shape, Topology
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Bind, Cause, Decision, Defer, Evict, Explanation, Move, Options, Request, Running
from calabash.sched.explain.nodes import MODELS_DIFFER, OTHER_MODEL
from calabash.sched.queues.hierarchy import queue_levels, queue_too_deep
from calabash.sched.queues.past_use import parse_half_life_s
from calabash.sched.queues.spec import QUEUE_DEPTH_MAX, UNLIMITED, OverLimit, QueueSpec
from calabash.sched.rounds import CycleLimit
from calabash.sched.scheduler import DEFAULT_POLICY, Scheduler
from calabash.sched.snapshot import Snapshot
from calabash.sched.topology import LEVELS_MAX, NODE_LEVEL, GangTopology, check_levels
from calabash.sched.updates import relabel, set_evictable, set_mig_coming, set_mig_instances, set_movable

__all__ = [
    "DEFAULT_POLICY",
    "LEVELS_MAX",
    "MODELS_DIFFER",
    "NODE_LEVEL",
    "OTHER_MODEL",
    "QUEUE_DEPTH_MAX",
    "UNLIMITED",
    "WHOLE_MILLI",
    "ZERO",
    "Amount",
    "Bind",
    "Cause",
    "CycleLimit",
    "Decision",
    "Defer",
    "Evict",
    "Explanation",
    "GangTopology",
    "GpuSpec",
    "Move",
    "NodePlacement",
    "NodeSpec",
    "Options",
    "OverLimit",
    "PlacementPolicy",
    "QueueSpec",
    "Request",
    "Running",
    "Scheduler",
    "Shape",
    "Snapshot",
    "Topology",
    "check_levels",
    "parse_half_life_s",
    "queue_levels",
    "queue_too_deep",
    "relabel",
    "set_evictable",
    "set_mig_coming",
    "set_mig_instances",
    "set_movable",
]
