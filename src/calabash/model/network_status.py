"""What is known of an object of a tenant network: how far it has been carried out, and whether it does its work."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ConditionKind(StrEnum):
    """VALID: it can be carried out. REALIZED: every living host that it concerns has it. READY: it does what it is for,
    as seen from outside (a port answers, a backend is well)."""

    VALID = "valid"
    REALIZED = "realized"
    READY = "ready"


class VpcReady(StrEnum):
    """Reasons of the condition READY of a VPC: what of OVN does not answer, so that nothing new works in it."""

    ACTIVE = "active"
    NORTHBOUND_DOWN = "northbound_down"
    SOUTHBOUND_DOWN = "southbound_down"
    NORTHD_DOWN = "northd_down"
    HOST_SILENT = "host_silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCondition:
    """``reason`` is a stable word; ``holds`` None: not known. ``since_s``: Unix time of the last change."""

    kind: ConditionKind
    holds: bool | None
    reason: str = ""
    message: str = ""
    since_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkStatus:
    """What is known of one object: ``generation`` was last asked for, ``observed_generation`` carried out."""

    generation: int
    observed_generation: int = 0
    conditions: tuple[NetworkCondition, ...] = ()
    host: str = ""
