"""What a scenario file says, as frozen values: one class per kind of line; ``scenario_text`` reads them."""

from __future__ import annotations

from dataclasses import dataclass

from calabash.model.errors import CalabashError
from calabash.model.mig import MigGeometry, MigInstance, MigPlace
from calabash.sched.decisions import Options, Request
from calabash.sched.queues.spec import QueueSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesLine:
    """Nodes of one kind; ``models`` are (model, memory in MiB, physical card or "", how MIG can cut it) per device."""

    names: tuple[str, ...]
    models: tuple[tuple[str, int, str, MigGeometry | None], ...]
    cpu_milli: int = 1_000_000
    memory_mib: int = 4 << 20
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[str, ...] = ()
    nvlink: bool = False
    mig: bool = False
    mode: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HasLine:
    """A request that runs when the scenario starts (or from that step on)."""

    request: Request
    started_ago_s: float = 0.0
    node: str = ""
    devices: tuple[int, ...] = ()
    places: tuple[tuple[MigPlace, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StandsLine:
    """MIG instances that stand on a device from that step on, used or not, and no others."""

    node: str
    device: int
    instances: tuple[MigInstance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AsksLine:
    """A request that joins the line."""

    request: Request
    submitted_ago_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterLine:
    """Time passes."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbLine:
    """Something happens to named things: ends, cancel, cordon, uncordon, remove."""

    verb: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLine:
    """Queues are defined, or changed where they exist."""

    specs: tuple[QueueSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One decision that must come; empty fields accept anything."""

    verb: str
    id: str
    node: str = ""
    devices: tuple[int, ...] | None = None
    reason: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThenLine:
    """One cycle runs and exactly these decisions come, in any order."""

    expected: tuple[Expected, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyLine:
    """The explanation of a waiting request has this code and these words."""

    id: str
    reason: str
    texts: tuple[str, ...]
    start_in_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesLine:
    """A queue's shares now, in devices."""

    queue: str
    wanted: tuple[tuple[str, float], ...]


Statement = (
    NodesLine | StandsLine | HasLine | AsksLine | AfterLine | VerbLine | QueueLine | ThenLine | WhyLine | SharesLine
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A whole file. ``statements`` are (line number, statement) in order."""

    rule: str
    options: Options
    policy: str
    statements: tuple[tuple[int, Statement], ...]


class ScenarioError(CalabashError):
    """A scenario that cannot be read: ``file:line: what`` and a hint."""
