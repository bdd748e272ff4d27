"""Configuration of nodes and their devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from calabash.model.mig import MigGeometry


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One device of a node.

    Args:
        model: name by which requests select the device: its card model, or another name that the caller has chosen.
        card: card model of the device; "" if ``model`` is the card model.
        memory_mib: memory; 0 if unknown, in which case only compute is scheduled.
        island: number of the NVLink island within the node, -1 without NVLink.
        numa: NUMA node, -1 if unknown.
        healthy: the device takes new placements.
        mode: sharing mode that the operator has fixed; "" for a device that follows demand.
        geometry: MIG geometry as read from the driver; None for the table entry of the model if ``mode`` is mig.
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
    """One node, with its total resources.

    Args:
        taints: taints as ``key=value:Effect``.
        domains: names of the domains of the network to which the node belongs, outermost first, one for each level of the
            cluster (``domains``). Names that are left out at the end are unknown.
    """

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: tuple[GpuSpec, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
