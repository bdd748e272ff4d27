"""What a scheduler has at one moment, as frozen values: what a scenario file says of a pool."""

from __future__ import annotations

from dataclasses import dataclass

from calabash.model.mig import MigInstance
from calabash.sched.cluster.spec import NodeSpec
from calabash.sched.decisions import Options, Request, Running
from calabash.sched.queues.spec import QueueSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The caller's nodes, the queues, and who waits and runs; ``standing`` are the MIG instances on a node's device."""

    nodes: tuple[NodeSpec, ...]
    cordoned: tuple[str, ...]
    queues: tuple[QueueSpec, ...]
    options: Options
    waiting: tuple[Request, ...]
    running: tuple[Running, ...]
    now_s: float
    standing: tuple[tuple[str, int, tuple[MigInstance, ...]], ...] = ()
