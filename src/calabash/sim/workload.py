"""Inputs of a simulation: nodes, and requests with optional times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calabash.sched.cluster.demand import Demand
from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request of a trace. ``arrives_s`` and ``runs_s`` are 0 where the trace has no times."""

    name: str
    shape: Shape
    arrives_s: float = 0.0
    runs_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of one trace, in the order of the file."""

    name: str
    requests: tuple[TraceRequest, ...]

    @property
    def shapes(self) -> list[Shape]:
        """Shape of every request. Equal shapes are the same object, which makes dictionary lookups fast."""
        unique: dict[Shape, Shape] = {}
        return [unique.setdefault(request.shape, request.shape) for request in self.requests]

    @property
    def demand(self) -> Demand:
        """Number of requests of each shape."""
        return Demand.from_shapes(request.shape for request in self.requests)


def simple_node(
    *, name: str, cpu_milli: int, memory_mib: int, gpu_count: int, model: str, gpu_memory_mib: int = 0
) -> NodeSpec:
    """Return a node with equal devices."""
    gpus = tuple(GpuSpec(model=model, memory_mib=gpu_memory_mib) for _ in range(gpu_count))
    return NodeSpec(name=name, cpu_milli=cpu_milli, memory_mib=memory_mib, gpus=gpus)


def replicate(nodes: Sequence[NodeSpec], times: int) -> list[NodeSpec]:
    """Return ``times`` copies of all nodes, renamed so that their names are unique, to simulate a larger cluster."""
    return [
        NodeSpec(
            name=f"{node.name}.{copy}",
            cpu_milli=node.cpu_milli,
            memory_mib=node.memory_mib,
            gpus=node.gpus,
            labels=node.labels,
            taints=node.taints,
            domains=node.domains,
        )
        for copy in range(times)
        for node in nodes
    ]
