"""What a pod asks for, as admission understood it: one ``GpuRequest`` for each container that uses devices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from calabash.model.request import GpuRequest


class ContainerKind(StrEnum):
    """When a container runs: INIT before the others and one by one, SIDECAR from its place among the init containers to the
    end of the pod, MAIN with the other main ones. Ephemeral containers may not ask for devices."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    """What one container asks for."""

    container: str
    kind: ContainerKind
    request: GpuRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """What a pod asks for: ``containers`` in the order of its spec, ``dialect`` in whose words."""

    dialect: str
    containers: tuple[ContainerRequest, ...]
