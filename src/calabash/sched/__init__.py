"""The scheduler as a function over resident arrays: who gets which devices of which node, and why not.

What lives here, each package with a public face of its own:

* ``cluster``: the resident arrays, shapes of requests, feasibility, MIG geometry, the engine with one cached score
  vector per shape;
* ``policies``: which place is best, and the tables that learned policies use;
* ``queues``: the tree of queues, fair shares, gangs and the registry of who waits and runs;
* ``actions``: one module per way to start something: allocate, reserve, preempt, defragment;
* ``explain``: why something waits;
* ``scheduler``, ``cycle``: events in, decisions out, over one shared state.

What never lives here: clocks, threads, files, sockets, logging, sharing modes, or the name of any front end. Time is an
argument. The binder, the planner of Kubernetes and the simulator use it unchanged, through the names below.
"""

from calabash.sched.cluster.scoring import PlacementPolicy
from calabash.sched.cluster.shape import WHOLE_MILLI, NodePlacement, Shape, Topology
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Bind, Cause, Decision, Defer, Evict, Explanation, Move, Options, Request, Running
from calabash.sched.explain.nodes import OTHER_MODEL
from calabash.sched.queues.fairshare import ZERO, Amount
from calabash.sched.queues.hierarchy import levels, too_deep
from calabash.sched.queues.spec import QUEUE_DEPTH_MAX, UNLIMITED, OverLimit, QueueSpec
from calabash.sched.rounds import CycleLimit
from calabash.sched.scheduler import DEFAULT_POLICY, Scheduler
from calabash.sched.snapshot import Snapshot
from calabash.sched.upkeep import relabel, set_evictable, set_mig_coming, set_mig_instances, set_movable

__all__ = [
    "DEFAULT_POLICY",
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
    "levels",
    "relabel",
    "set_evictable",
    "set_mig_coming",
    "set_mig_instances",
    "set_movable",
    "too_deep",
]
