"""A cluster as its owner describes it: nodes and their devices, with everything free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from calabash.model.mig import MigGeometry


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One device of a node.

    Args:
        model: name by which requests select it.
        card: the physical model, where ``model`` names something finer (a single device); "" is the same as ``model``.
        memory_mib: its memory; 0 when unknown (then only compute is scheduled).
        island: number of its NVLink island within the node, -1 when it has no NVLink.
        numa: NUMA node, -1 when unknown.
        healthy: takes new work.
        mode: sharing mode that is fixed by its operator; "" follows demand.
        geometry: its MIG profiles as read from the driver; None takes the table for the model when ``mode`` is mig.
    """

    model: str = ""
    card: str = ""
    memory_mib: int = 0
    island: int = -1
    numa: int = -1
    healthy: bool = True
    mode: str = ""
    geometry: MigGeometry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """A node with everything free. ``taints`` are ``key=value:Effect``; ``rack`` names its switch or block."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: tuple[GpuSpec, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    rack: str = ""
