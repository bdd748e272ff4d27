"""Status of an object of a tenant network: the generation that is realized, and its conditions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ConditionKind(StrEnum):
    """Types of conditions of a network object.

    VALID: the object can be configured. REALIZED: every live host that the object concerns has configured it. READY: the
    object works as seen from outside, for example a port answers or a backend is healthy.
    """

    VALID = "valid"
    REALIZED = "realized"
    READY = "ready"


class VpcReady(StrEnum):
    """Reasons of the condition READY of a VPC: ACTIVE, or the component of OVN that does not answer.

    While a component does not answer, changes of the VPC take no effect.
    """

    ACTIVE = "active"
    NORTHBOUND_DOWN = "northbound_down"
    SOUTHBOUND_DOWN = "southbound_down"
    NORTHD_DOWN = "northd_down"
    HOST_SILENT = "host_silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCondition:
    """One condition of a network object.

    Args:
        holds: the condition is true or false; None: unknown.
        reason: stable code of the cause.
        since_s: Unix time of the last change.
    """

    kind: ConditionKind
    holds: bool | None
    reason: str = ""
    message: str = ""
    since_s: float = 0.0
