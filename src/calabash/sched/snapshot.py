"""Frozen copy of the state of a scheduler, from which a scenario file can be written."""

from __future__ import annotations

from dataclasses import dataclass

from calabash.model.mig import MigInstance
from calabash.sched.cluster.spec import NodeSpec
from calabash.sched.decisions import Options, Request, Running
from calabash.sched.queues.spec import QueueSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of a scheduler at one moment.

    Args:
        nodes: nodes as the caller described them. cordoned: names of the nodes that are not schedulable.
        waiting, running: requests in the queues and on the nodes.
        levels: names of the levels of the network, outermost first.
        standing: existing MIG instances, as (name of the node, device, instances).
    """

    nodes: tuple[NodeSpec, ...]
    cordoned: tuple[str, ...]
    queues: tuple[QueueSpec, ...]
    options: Options
    waiting: tuple[Request, ...]
    running: tuple[Running, ...]
    now_s: float
    levels: tuple[str, ...] = ()
    standing: tuple[tuple[str, int, tuple[MigInstance, ...]], ...] = ()
